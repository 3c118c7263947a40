//! Options of `fencepost node`, and the token's file, which client commands take too.

use rustix::process::Signal;
use wire::worker::close;

use crate::jobs::{Peer, tell};
use crate::process::{answering_tokens, ended, fencepost, listener};

#[tokio::test]
async fn a_node_whose_token_is_replaced_in_its_file_connects_with_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "t-1\n").unwrap();
    let (listener, url) = listener().await;
    let node = fencepost(&["node", "--url", &url, "--token-file", file.to_str().unwrap(), "--exec", "cat"]);
    let mut first = Peer::welcomed(&listener).await;
    std::fs::write(&file, "t-2\n").unwrap();
    first.close(close::UNAUTHORIZED).await;
    let mut second = Peer::welcomed_with(&listener, "t-2").await;
    tell(&node, Signal::TERM);
    assert_eq!(second.heard().await, "drain");
    assert_eq!(second.heard().await, "gone");
    let output = ended(node).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn a_node_on_which_attempts_fail_one_after_the_other_takes_no_more_and_exits_75() {
    let (listener, url) = listener().await;
    let words = ["node", "--url", &url, "--token", "t-1", "--drain-after-failures", "2", "--exec", "false"];
    let node = fencepost(&words);
    let mut peer = Peer::welcomed(&listener).await;
    let failed = r#""message":"exit status 1""#;
    peer.dispatch("a").await;
    let first = peer.heard().await;
    assert!(first.contains(failed), "{first}");
    peer.commit("a").await;
    peer.dispatch("b").await;
    // The result may wait behind the drain.
    let mut heard = [peer.heard().await, peer.heard().await];
    heard.sort();
    assert!(heard[0] == "drain" && heard[1].contains(failed), "{heard:?}");
    peer.commit("b").await;
    assert_eq!(peer.heard().await, "gone");
    let output = ended(node).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{err}");
    assert!(err.contains("fencepost: 2 attempts in a row have failed"), "{err}");
}

#[tokio::test]
async fn a_client_command_shows_the_token_of_its_file_and_names_a_file_that_has_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let (stand_in, url) = listener().await;
    let heard = answering_tokens(stand_in, vec![(200, r#"{"items":[],"next_cursor":null}"#.to_owned())]);
    let list = ["job", "list", "--url", &url, "--token-file", file.to_str().unwrap()];
    for (text, why) in [(None, "No such file"), (Some("\n"), "is empty")] {
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
        }
        let output = ended(fencepost(&list)).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{err}");
        assert!(err.contains("the token's file ") && err.contains(why), "{err}");
    }
    std::fs::write(&file, "t-1\n").unwrap();
    let output = ended(fencepost(&list)).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(*heard.lock(), ["Bearer t-1"]);
}
