//! Options of a worker: how they are shown, which are refused before anything is sent, and which token is.

use tokio::io::AsyncReadExt;

use super::*;

#[test]
fn options_are_shown_without_their_token() {
    let token = Some("t0ken".to_owned());
    let shown = format!("{:?}", WorkerOptions { token, ..WorkerOptions::new(["h"], "n-7") });
    assert!(shown.contains("n-7") && !shown.contains("t0ken"), "{shown}");
}

#[test]
fn options_that_no_scheduler_would_take_are_refused_at_once() {
    let good = WorkerOptions::new(["http://h"], "n");
    let hears = |language: String| Languages { asr: vec![language], ..Languages::default() };
    let many = |count: u32| (0..count).map(|n| format!("l{n}")).collect::<Vec<_>>();
    for (bad, says) in [
        (WorkerOptions { urls: Vec::new(), ..good.clone() }, "at least one URL"),
        (WorkerOptions { urls: vec!["ws://h".to_owned()], ..good.clone() }, "http:// or https://"),
        (WorkerOptions { node_id: String::new(), ..good.clone() }, "1 to 128 characters"),
        (WorkerOptions { capacity: 0, ..good.clone() }, "capacity 0 must be from 1 to 10000"),
        (WorkerOptions { capacity: 10_001, ..good.clone() }, "capacity 10001 must be"),
        (WorkerOptions { labels: vec!["l".repeat(65)], ..good.clone() }, "1 to 64 characters"),
        (WorkerOptions { node_id: "a b".to_owned(), ..good.clone() }, "node_id \"a b\" must be"),
        (
            WorkerOptions { node_id: "..".to_owned(), ..good.clone() },
            "digits and . _ : @ -, but not . or .. alone",
        ),
        (WorkerOptions { labels: vec![".".to_owned()], ..good.clone() }, "@ -, but not . or .. alone"),
        (WorkerOptions { labels: vec!["é".to_owned()], ..good.clone() }, "label \"é\" must be"),
        (
            WorkerOptions { labels: vec!["l".to_owned(); 257], ..good.clone() },
            "label: a node has at most 256",
        ),
        (
            WorkerOptions {
                services: vec!["s".to_owned()],
                labels: many(255),
                languages: hears("zh".to_owned()),
                ..good.clone()
            },
            "label: a node has at most 256 of them, those of services and languages included",
        ),
        (WorkerOptions { services: vec![String::new()], ..good.clone() }, "service \"\" must be"),
        (WorkerOptions { languages: hears("z".repeat(36)), ..good.clone() }, "1 to 35 characters"),
        (WorkerOptions { languages: hears("z h".to_owned()), ..good.clone() }, "asr \"z h\" must be"),
        (WorkerOptions { pools: vec!["a/b".to_owned()], ..good.clone() }, "pool \"a/b\" must be"),
        (WorkerOptions { version: Some("v".repeat(129)), ..good.clone() }, "version must have 1 to 128"),
        (WorkerOptions { version: Some(String::new()), ..good.clone() }, "version must have"),
        (WorkerOptions { token: Some("\n".to_owned()), ..good.clone() }, "the token"),
        (
            WorkerOptions { token_file: Some("/no/such/file".into()), ..good.clone() },
            "file /no/such/file: No such",
        ),
    ] {
        let error = Worker::new(bad).unwrap_err();
        assert!(matches!(&error, Error::Unusable(why) if why.contains(says)), "{error}");
        assert!(!error.to_string().contains("column"), "nobody wrote a text with columns: {error}");
    }
    let longest =
        WorkerOptions { node_id: "n".repeat(128), labels: vec!["asr:zh_-.@".to_owned(); 256], ..good };
    assert!(Worker::new(longest.clone()).is_ok());
    // Those that are the same label count once.
    let labels = many(254).into_iter().chain(["asr:zh".to_owned(), "s".to_owned()]).collect();
    let most = WorkerOptions {
        services: vec!["s".to_owned()],
        labels,
        languages: hears("zh".to_owned()),
        ..longest
    };
    assert!(Worker::new(most).is_ok());
}

/// The token with which the next connection is asked for, and the connection, without an answer.
async fn asked(scheduler: &Scheduler) -> (String, TcpStream) {
    let mut stream = scheduler.0.reached().await;
    let mut head = [0; 4_096];
    let length = stream.read(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..length]);
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    let (_, token) = fields.find(|(name, _)| name.eq_ignore_ascii_case("authorization")).expect("a token");
    (token.to_owned(), stream)
}

#[tokio::test]
async fn a_token_in_a_file_is_read_again_for_each_connection() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "one\n").unwrap();
    let scheduler = Scheduler::new().await;
    let (token, token_file) = (Some("given".to_owned()), Some(file.clone()));
    let _worker = Running::start(WorkerOptions { token, token_file, ..options(&scheduler, 1) }, echo);
    let (first, stream) = asked(&scheduler).await;
    std::fs::write(&file, "two\n").unwrap();
    drop(stream);
    let (second, _stream) = asked(&scheduler).await;
    assert_eq!((first.as_str(), second.as_str()), ("Bearer one", "Bearer two"));
}
