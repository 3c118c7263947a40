//! Many sessions of one token.

use futures_util::StreamExt;
use serde_json::json;

use super::{Bounded, MIB};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_so_many_sessions_and_others_are_served() {
    const MOST: usize = 300;
    let daemon = Bounded::start(&[("JOBS__CALLER_SESSIONS_MAX", &MOST.to_string())]).await;
    let before = daemon.memory();
    let open = async |_: usize| daemon.ask("greedy", "POST", "/v1/sessions", Some(&json!({}))).await;
    let replies: Vec<_> =
        futures_util::stream::iter(0..MOST + 100).map(open).buffer_unordered(8).collect().await;
    let opened: Vec<_> = replies.iter().filter(|reply| reply.status == 201).collect();
    // Several at once may be some more.
    assert!((MOST..MOST + 8).contains(&opened.len()), "{}", opened.len());
    for refused in replies.iter().filter(|reply| reply.status != 201) {
        assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
        assert!(refused.retry_after.is_some() && refused.text.contains("close those"), "{}", refused.text);
    }
    daemon.serves_others().await;
    daemon.done("other", "POST", "/v1/sessions", json!({})).await;
    assert!(daemon.memory().saturating_sub(before) < 64 * MIB);
    // One that is closed makes room for another.
    let over = opened.len() - MOST;
    for reply in &opened[..=over] {
        let path = format!("/v1/sessions/{}", reply.body["id"].as_str().unwrap());
        assert_eq!(daemon.ask("greedy", "DELETE", &path, None).await.status, 204);
    }
    assert_eq!(open(0).await.status, 201);
    assert_eq!(open(0).await.status, 429);
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_tokens_many_signers_are_refused_and_those_it_has_used_and_those_of_others_are_served() {
    let daemon = Bounded::start(&[("NONCE__CALLER_SIGNERS_MAX", "20")]).await;
    let grant = async |token: &str, number: usize| {
        daemon.ask(token, "POST", &format!("/v1/signers/s-{number}/nonces"), None).await
    };
    for number in 0..20 {
        assert_eq!(grant("greedy", number).await.status, 201);
    }
    for number in 20..30 {
        let refused = grant("greedy", number).await;
        assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
        assert!(refused.retry_after.is_some());
    }
    assert_eq!(grant("greedy", 0).await.status, 201, "it has used this one");
    assert_eq!(grant("other", 20).await.status, 201);
    daemon.serves_others().await;
    daemon.is_sound();
}
