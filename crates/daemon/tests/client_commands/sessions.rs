//! `fencepost session`.

use crate::process::{answering, ended, fencepost, listener};

#[tokio::test]
async fn a_session_that_was_closed_is_closed_though_it_cannot_be_looked_at() {
    let away = wire::Problem::new(wire::Code::Unauthorized, "the token was taken away");
    let away = (away.status, serde_json::to_string(&away).unwrap());
    let (stand_in, url) = listener().await;
    let heard = answering(stand_in, vec![(204, String::new()), away.clone(), (204, String::new()), away]);
    for (option, stdout) in [("--yes", "session s-1 is closed\n"), ("--json", "{\"id\":\"s-1\"}\n")] {
        let output = ended(fencepost(&["session", "close", "s-1", "--url", &url, option])).await;
        let out = String::from_utf8_lossy(&output.stdout);
        assert_eq!((output.status.code(), out.as_ref()), (Some(0), stdout), "{option}");
    }
    assert_eq!(*heard.lock(), ["DELETE /v1/sessions/s-1", "GET /v1/sessions/s-1"].repeat(2));
}
