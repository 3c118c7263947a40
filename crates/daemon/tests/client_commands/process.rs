//! The command as a process, and a stand-in for the scheduler that plays a script.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// Longer than anything takes that is right.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Hangs up without an answer.
pub const LOST: (u16, String) = (0, String::new());

/// Starts the command.
pub fn fencepost(words: &[&str]) -> Child {
    started(words, [Stdio::null(), Stdio::piped(), Stdio::piped()])
}

/// Starts the command with this on its standard input.
pub fn asked(words: &[&str], stdin: &str) -> Child {
    printing_to(words, stdin, Stdio::piped())
}

/// The same with this as its standard output.
pub fn printing_to(words: &[&str], stdin: &str, stdout: Stdio) -> Child {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(stdin.as_bytes()).unwrap();
    file.rewind().unwrap();
    started(words, [file.into(), stdout, Stdio::piped()])
}

/// An output that nobody reads.
pub fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Starts the command with a stderr that cannot be written.
pub fn unheard(words: &[&str]) -> Child {
    let full = File::create("/dev/full").unwrap();
    started(words, [Stdio::null(), Stdio::piped(), full.into()])
}

fn started(words: &[&str], [stdin, stdout, stderr]: [Stdio; 3]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command.args(words).stdin(stdin).stdout(stdout).stderr(stderr);
    command.kill_on_drop(true).spawn().unwrap()
}

/// Waits for the end of the command.
pub async fn ended(child: Child) -> Output {
    tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap()
}

/// A port, and its URL.
pub async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Answers one request after the other with these; what was asked: the first line of each without the version, and its body.
pub fn answering(listener: TcpListener, answers: Vec<(u16, String)>) -> Arc<Mutex<Vec<String>>> {
    recording(listener, answers, whole, |_| false)
}

/// The same, where each request that waits for the end of a job is left without an answer.
pub fn answering_no_waits(listener: TcpListener, answers: Vec<(u16, String)>) -> Arc<Mutex<Vec<String>>> {
    recording(listener, answers, whole, |request| request.contains("wait_ms="))
}

fn whole(request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1");
    format!("{line} {body}").trim_end().to_owned()
}

/// The same, which records the idempotency key of each request alone; empty for a request without one.
pub fn answering_keys(listener: TcpListener, answers: Vec<(u16, String)>) -> Arc<Mutex<Vec<String>>> {
    recording(listener, answers, key, |_| false)
}

/// The same, which records the header that has the token.
pub fn answering_tokens(listener: TcpListener, answers: Vec<(u16, String)>) -> Arc<Mutex<Vec<String>>> {
    recording(listener, answers, |request| field(request, "authorization"), |_| false)
}

/// The same, where each request is left without an answer.
pub fn unanswered_keys(listener: TcpListener) -> Arc<Mutex<Vec<String>>> {
    recording(listener, vec![LOST], key, |_| true)
}

fn key(request: &str) -> String {
    field(request, "idempotency-key")
}

/// What a request has in a field of its head; empty for one that it has not.
fn field(request: &str, name: &str) -> String {
    let fields = request.lines().filter_map(|line| line.split_once(": "));
    let mut values = fields.filter_map(|(of, value)| (of == name).then_some(value));
    values.next().unwrap_or_default().to_owned()
}

fn recording(
    listener: TcpListener,
    answers: Vec<(u16, String)>,
    recorded: fn(&str) -> String,
    is_left: fn(&str) -> bool,
) -> Arc<Mutex<Vec<String>>> {
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let record = Arc::clone(&heard);
    tokio::spawn(async move {
        let mut left = Vec::new();
        for (status, body) in answers {
            let mut stream = loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let request = hear(&mut stream).await;
                record.lock().push(recorded(&request));
                if !is_left(&request) {
                    break stream;
                }
                left.push(stream);
            };
            if status == LOST.0 {
                continue;
            }
            let answer = format!(
                "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    heard
}

/// Reads one whole request.
async fn hear(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&request);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return text.into_owned();
            }
        }
        assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0, "a whole request");
    }
}
