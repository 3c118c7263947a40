//! A command that follows something ends with the reader of its output, also where nothing changes.

use tokio::io::AsyncReadExt as _;

use crate::jobs::created;
use crate::process::{PATIENCE, answering, ended, fencepost, listener, printing_to, unread};

#[tokio::test]
async fn a_list_that_is_watched_ends_with_its_reader_where_it_stays_as_it_is() {
    let (stand_in, url) = listener().await;
    let list = || (200, r#"{"items":[],"next_cursor":null}"#.to_owned());
    answering(stand_in, (0..1_000).map(|_| list()).collect());
    let mut child = fencepost(&["job", "list", "-w", "--url", &url]);
    let mut output = child.stdout.take().unwrap();
    let read = tokio::time::timeout(PATIENCE, output.read(&mut [0])).await.expect("it prints").unwrap();
    assert_eq!(read, 1);
    drop(output);
    let ended = ended(child).await;
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[tokio::test]
async fn events_that_nobody_reads_are_not_waited_for() {
    let job = ["job", "events", "j-1"];
    let plan = ["plan", "events", "p-1", "-w"];
    for (words, answers) in [(job.as_slice(), vec![created()]), (plan.as_slice(), vec![])] {
        let (stand_in, url) = listener().await;
        answering(stand_in, answers);
        let ended = ended(printing_to(&[words, &["--url", &url]].concat(), "", unread())).await;
        assert_eq!(ended.status.code(), Some(0), "{words:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}
