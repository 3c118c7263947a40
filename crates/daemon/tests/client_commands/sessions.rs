//! `fencepost session`.

use std::fs::File;
use std::process::Stdio;

use crate::process::{answering, answering_keys, ended, fencepost, listener, printing_to};

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

#[tokio::test]
async fn an_id_that_cannot_be_written_is_printed_by_the_same_command_under_the_key_that_is_named() {
    let (stand_in, url) = listener().await;
    let opened = || (201, r#"{"id":"s-1","owner":"i-1","ordering":"strict"}"#.to_owned());
    let heard = answering_keys(stand_in, vec![opened(), opened()]);
    let line = ["session", "open", "--url", &url];
    let full = Stdio::from(File::create("/dev/full").unwrap());
    let output = ended(printing_to(&line, "", full)).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{err}");
    let (_, key) = err.trim_end().split_once("run the same command with --key ").expect("the key is named");
    let output = ended(fencepost(&[&line[..], &["--key", key]].concat())).await;
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"s-1\n"[..]));
    assert_eq!(*heard.lock(), [key, key]);
}
