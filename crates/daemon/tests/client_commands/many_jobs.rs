//! `fencepost submit -f`, and `job retry` of many: what they say and how they end where jobs are refused, or their output
//! cannot be written.

use std::fs::File;
use std::process::Stdio;

use crate::process::{answering_keys, ended, fencepost, listener, printing_to, unread};

/// Two jobs, which go in one batch.
const TWO: &str = "{\"payload\":1}\n{\"payload\":2}\n";
/// A job that has a key of its own, and so goes in no batch with these.
const NAMED: &str = "{\"payload\":3,\"session\":\"s\",\"ref\":\"r\"}\n";
/// The answer that accepts [`TWO`].
const ACCEPTED: &str = r#"{"results":[{"id":"j-1"},{"id":"j-2"}]}"#;

/// How a command ended that submits these lines under the key `k`: its status, stderr, and the keys that were asked for.
async fn submitted(lines: &str, answer: (u16, &str), stdout: Stdio) -> (Option<i32>, String, Vec<String>) {
    let (listener, url) = listener().await;
    let (status, body) = answer;
    let heard = answering_keys(listener, vec![(status, body.to_owned())]);
    let words = ["submit", "-f", "-", "--key", "k", "--url", &url];
    let output = ended(printing_to(&words, lines, stdout)).await;
    let err = String::from_utf8(output.stderr).unwrap();
    let heard = heard.lock().clone();
    (output.status.code(), err, heard)
}

#[tokio::test]
async fn all_jobs_of_a_batch_count_as_accepted_whether_they_can_be_printed_or_not() {
    let full = || Stdio::from(File::create("/dev/full").unwrap());
    let go_on = "To continue without submitting a job twice, within 24 h (nonce.key_retention_ms) run the same command with \
                 --key k\n";

    let (status, err, _) = submitted(TWO, (202, ACCEPTED), unread()).await;
    assert_eq!((status, err.as_str()), (Some(0), "2 jobs are accepted\n"), "nothing is left to submit");
    let (status, err, _) = submitted(TWO, (202, ACCEPTED), full()).await;
    assert_eq!(status, Some(74), "{err}");
    assert!(err.starts_with("fencepost: the answer could not be written: No space left on device"), "{err}");
    assert!(err.contains("; 2 jobs are accepted. ") && err.ends_with(go_on), "{err}");

    let lines = [TWO, NAMED].concat();
    let (status, err, heard) = submitted(&lines, (202, ACCEPTED), unread()).await;
    assert_eq!((status, heard), (Some(1), vec!["k.1".to_owned()]), "{err}");
    assert!(
        err.contains("nobody reads what is accepted, so no further jobs are submitted; 2 are accepted. ")
    );
    assert!(err.ends_with(go_on), "{err}");
    let (status, err, heard) = submitted(&lines, (202, ACCEPTED), full()).await;
    assert_eq!((status, heard), (Some(74), vec!["k.1".to_owned()]), "{err}");
    assert!(err.contains(": No space left on device"), "{err}");
    assert!(err.contains(", so no further jobs are submitted; 2 are accepted. "), "{err}");
}

#[tokio::test]
async fn a_refused_line_is_corrected_in_a_file_of_its_own_under_a_new_key() {
    let of = |code: &str| format!(r#"{{"results":[{{"id":"j-1"}},{{"code":"{code}","detail":"because"}}]}}"#);
    let (status, err, _) = submitted(TWO, (202, &of("conflict")), Stdio::null()).await;
    assert_eq!(status, Some(1), "{err}");
    let says = "1 jobs are accepted, 1 are refused. Put the refused lines, corrected, into a file of their own, and submit \
                that file under a new key\n";
    assert!(err.contains("line 2: conflict: because\n") && err.ends_with(says), "{err}");
    assert!(!err.contains("--key k"), "{err}");

    // One that may be accepted all the same would be done twice.
    let (status, err, _) = submitted(TWO, (202, &of("internal")), Stdio::null()).await;
    assert_eq!(status, Some(1), "{err}");
    let says =
        "run the same command with --key k, with the refused lines as they are. Put these, corrected, ";
    assert!(err.contains(says), "{err}");

    // The lines behind the first batch are not there yet.
    let lines = [TWO, NAMED, "nope\n"].concat();
    let (status, err, _) = submitted(&lines, (202, &of("conflict")), Stdio::null()).await;
    assert_eq!(status, Some(2), "{err}");
    assert!(err.contains("standard input: line 4, column 2") && err.contains(says), "{err}");
}

#[tokio::test]
async fn a_key_that_was_used_for_other_lines_leads_to_no_other_key() {
    let problem = serde_json::to_string(&wire::Problem::new(wire::Code::KeyReused, "used")).unwrap();
    let (status, err, heard) =
        submitted(TWO, (wire::Code::KeyReused.status(), &problem), Stdio::null()).await;
    assert_eq!((status, heard), (Some(1), vec!["k.1".to_owned()]), "{err}");
    let says = "0 jobs are accepted; the batch from line 1 on is not. The file or the options have changed since --key k was \
                used; as they were, the same command continues\n";
    assert!(err.starts_with(says) && err.contains("refused: key_reused: used"), "{err}");
    assert!(!err.contains("with --key k") && !err.contains("Use another"), "{err}");
}

#[tokio::test]
async fn a_retry_of_many_names_its_key_where_the_rest_may_be_retried_later_or_by_now() {
    let cases: [&[&str]; 2] = [&[], &["--json"]];
    for (code, is_named) in
        [("overloaded", true), ("ledger_unavailable", true), ("internal", true), ("conflict", false)]
    {
        for more in cases {
            let left = format!(r#"{{"retry_of":"j-2","code":"{code}","detail":"because"}}"#);
            let answer = format!(r#"{{"retried":1,"ids":["n-1"],"results":[{left}]}}"#);
            let (listener, url) = listener().await;
            let heard = answering_keys(listener, vec![(202, answer)]);
            let words: &[&str] = &["job", "retry", "j-1", "j-2", "--url", &url];
            let output = ended(fencepost(&[words, more].concat())).await;
            let err = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{code} {more:?}: {err}");
            let key = heard.lock()[0].clone();
            let says =
                format!("To retry the rest, and no job twice, run the same command with --key {key}\n");
            assert_eq!(err.contains(&says), is_named, "{code} {more:?}: {err}");
        }
    }
}
