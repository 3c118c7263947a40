//! Batches of jobs under a key.

use domain::job::Requirements;
use domain::session::{Ordering, Spec};
use domain::{Names, Pattern, SessionId, TenantId};

use super::*;

#[actix_web::test]
async fn a_batch_for_a_session_that_is_not_seen_leaves_its_key_free() {
    let dir = TempDir::new().unwrap();
    let tenants = Names::Some([Pattern::parse("acme").unwrap()].into());
    let narrow = Token { sees: Sees { tenants, ..Sees::default() }, ..token("acme", Scope::Submit) };
    let state = state(&dir, Auth::tokens(vec![narrow])).await;
    let spec = Spec {
        tenant: Some(TenantId::parse("other").unwrap()),
        needs: Requirements::default(),
        ordering: Ordering::Strict,
        idle_ms: 60_000,
    };
    state.ledger.open_session(&SessionId::parse("others").unwrap(), &spec, None, None).await.unwrap();
    let service = init_service(app(&forwarder(&state))).await;
    for count in [1, 2] {
        let jobs = vec![serde_json::json!({"payload": 1, "session": "others"}); count];
        let request = TestRequest::post().uri("/v1/jobs/batch").set_json(serde_json::json!({ "jobs": jobs }));
        let request = request.insert_header((AUTHORIZATION, "Bearer acme"));
        let answer =
            call_service(&service, request.insert_header(("idempotency-key", "k")).to_request()).await;
        assert_eq!(answer.status(), StatusCode::ACCEPTED, "{count}");
        let answer: Value = read_body_json(answer).await;
        let results = answer["results"].as_array().unwrap();
        assert!(
            results.len() == count && results.iter().all(|result| result["code"] == "not_found"),
            "{answer}"
        );
    }
}
