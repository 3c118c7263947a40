//! `fencepost pool`.

use crate::process::{answering, ended, fencepost, listener};

#[tokio::test]
async fn a_file_that_replaces_an_old_version_is_refused_as_the_daemon_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pools.json");
    std::fs::write(&file, r#"{"version":1,"pools":[]}"#).unwrap();
    let line = ["pool", "set", "-f", file.to_str().unwrap(), "--url"];
    let now = || (200, r#"{"version":2,"pools":[],"paused":[]}"#.to_owned());
    let (stand_in, url) = listener().await;
    let heard = answering(stand_in, vec![now(), now()]);
    let output = ended(fencepost(&[&line[..], &[url.as_str(), "--json"]].concat())).await;
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), b"".as_slice()));
    let problem: wire::Problem = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(problem.known_code(), Some(wire::Code::Conflict));
    assert!(problem.detail.starts_with("the file replaces version 1, but the pools have version 2 now"));

    let output = ended(fencepost(&[&line[..], &[url.as_str()]].concat())).await;
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("nothing was changed\n  `fencepost pool show --json`"), "{err}");
    assert_eq!(*heard.lock(), ["GET /v1/config/pools"; 2]);
}

#[tokio::test]
async fn pools_with_fields_that_the_command_does_not_know_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pools.json");
    std::fs::write(&file, r#"{"version":2,"pools":[{"name":"a","weight":3}]}"#).unwrap();
    let newer = r#"{"version":2,"pools":[{"name":"a","colour":"blue"}],"paused":[],"plan":"b"}"#;
    let (stand_in, url) = listener().await;
    let heard = answering(stand_in, vec![(200, newer.to_owned()); 3]);
    let line = ["pool", "set", "-f", file.to_str().unwrap(), "--url", &url, "--yes"];
    for more in [None, Some("--json"), Some("--dry-run")] {
        let words: Vec<_> = line.into_iter().chain(more).collect();
        let output = ended(fencepost(&words)).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), b"".as_slice()), "{err}");
        assert!(err.contains("nothing was changed") && err.contains("unknown field `colour`"), "{err}");
    }
    assert_eq!(*heard.lock(), ["GET /v1/config/pools"; 3]);
}

#[tokio::test]
async fn an_answer_that_is_no_setting_of_pools_is_told_as_a_strangers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pools.json");
    std::fs::write(&file, r#"{"version":2,"pools":[]}"#).unwrap();
    let strange = ["{}", "[]", r#"{"version":2}"#, r#"{"version":2,"pools":[{"label":"a"}]}"#];
    let (stand_in, url) = listener().await;
    let heard = answering(stand_in, strange.map(|body| (200, body.to_owned())).to_vec());
    for body in strange {
        let output =
            ended(fencepost(&["pool", "set", "-f", file.to_str().unwrap(), "--url", &url, "--yes"])).await;
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(69), b"".as_slice()), "{err}");
        assert!(err.contains("is not Fencepost's (HTTP status 200)"), "{body}: {err}");
    }
    assert_eq!(*heard.lock(), ["GET /v1/config/pools"; 4]);
}

#[tokio::test]
async fn a_script_sets_the_first_pools_without_a_question() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pools.json");
    std::fs::write(&file, r#"{"version":1,"pools":[{"name":"a"}]}"#).unwrap();
    let none = r#"{"version":1,"pools":[],"paused":[]}"#;
    let set = r#"{"version":2,"pools":[{"name":"a"}],"paused":[]}"#;
    let (stand_in, url) = listener().await;
    let heard = answering(stand_in, [none, set].map(|body| (200, body.to_owned())).to_vec());
    let output = ended(fencepost(&["pool", "set", "-f", file.to_str().unwrap(), "--url", &url])).await;
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let heard = heard.lock();
    assert!(heard.len() == 2 && heard[1].starts_with("PUT /v1/config/pools "), "{heard:?}");
}
