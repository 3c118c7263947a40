//! Cursors of lists that leave something out: they name nothing to a token that does not see it.

use actix_web::test::read_body;
use domain::{Names, NodeId, Pattern};

use super::*;

/// A token that sees the nodes of this pattern.
fn of_nodes(name: &str, pattern: &str) -> Token {
    let nodes = Names::Some([Pattern::parse(pattern).unwrap()].into());
    Token { sees: Sees { nodes, ..Sees::default() }, ..token(name, Scope::Read) }
}

/// Nodes of these ids, as other instances have told of them.
fn connected(state: &State, ids: &[&str]) {
    let registry = &state.incarnation().registry;
    let now = Instant::now();
    for id in ids {
        let holder = InstanceId::parse("other-1").unwrap();
        let profile = nodes::Profile::new(NodeId::parse(id).unwrap(), holder, 5_000);
        let record = nodes::Record {
            stamp: nodes::Stamp { epoch: bus::Epoch::new(1), version: bus::Version::new(1) },
            profile: Arc::new(profile),
            status: nodes::Status {
                capacity: 1,
                used: 0,
                is_complete: true,
                state: bus::NodeState::Accepting,
            },
            load: nodes::Load::default(),
        };
        assert_eq!(registry.apply(record, now, now), nodes::Applied::New);
    }
    registry.reindex();
}

#[actix_web::test]
async fn a_cursor_names_nothing_that_its_token_does_not_see_and_is_good_for_that_token_alone() {
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![
        token("ops", Scope::Read),
        of_nodes("evil", "evil-*"),
        of_nodes("other", "evil-*"),
    ]);
    // A list gives up after each piece.
    let settings = Settings { request_timeout: Duration::ZERO, ..Settings::new(auth) };
    let state = state_with(&dir, settings).await;
    connected(&state, &["acme-1", "acme-2", "evil-1", "user-1"]);
    let service = init_service(app(&forwarder(&state))).await;
    let ask = async |who: &str, path: &str| {
        let request = TestRequest::get().uri(path).insert_header((AUTHORIZATION, format!("Bearer {who}")));
        let answer = call_service(&service, request.to_request()).await;
        let status = answer.status().as_u16();
        let text = String::from_utf8(read_body(answer).await.to_vec()).unwrap();
        (status, text)
    };
    let page = async |who: &str, path: &str| {
        let (status, text) = ask(who, path).await;
        assert_eq!(status, 200, "{who}: {path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    assert_eq!(page("ops", "/v1/nodes?limit=1").await["next_cursor"], "n.acme-1");
    assert_eq!(page("ops", "/v1/nodes?cursor=n.acme-2").await["items"][0]["id"], "evil-1");

    let (mut ids, mut cursors, mut path) = (Vec::new(), Vec::new(), "/v1/nodes?limit=1".to_owned());
    loop {
        let shown = page("evil", &path).await;
        let text = shown.to_string();
        assert!(["acme-1", "acme-2", "user-1"].iter().all(|unseen| !text.contains(unseen)), "{text}");
        ids.extend(shown["items"].as_array().unwrap().iter().map(|node| node["id"].clone()));
        let Some(next) = shown["next_cursor"].as_str() else { break };
        path = format!("/v1/nodes?limit=1&cursor={next}");
        cursors.push(next.to_owned());
    }
    assert_eq!(ids, ["evil-1"]);
    assert_eq!(cursors.len(), 2, "there is one behind each piece, which is of two nodes: {cursors:?}");
    let again = page("evil", "/v1/nodes?limit=1").await;
    assert_eq!(again["next_cursor"], cursors[0].as_str(), "the same page has the same cursor");

    let sealed = cursors[0].strip_prefix("n.").unwrap();
    for (who, path) in [
        ("evil", "/v1/nodes?cursor=n.acme-1".to_owned()),
        ("evil", "/v1/nodes?cursor=n.evil-1".to_owned()),
        ("evil", "/v1/leases?cursor=l.signer:eip155:1:0x7".to_owned()),
        ("evil", "/v1/signers?cursor=s.a".to_owned()),
        ("evil", format!("/v1/signers?cursor=s.{sealed}")),
        ("other", format!("/v1/nodes?cursor=n.{sealed}")),
        ("ops", format!("/v1/nodes?cursor=n.{sealed}")),
    ] {
        let (status, text) = ask(who, &path).await;
        assert_eq!(status, 400, "{who}: {path}: {text}");
        assert!(text.contains("\"invalid\"") && text.contains("cursor must be"), "{who}: {path}: {text}");
    }
}
