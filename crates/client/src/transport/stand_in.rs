//! Stands in for instances, as far as HTTP goes: plays a script over real sockets.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Notify;
use wire::{Code, Problem};

use crate::{Client, Retry};

/// What the stand-in does with one request.
pub(crate) enum Act {
    /// Answers with this status, header line and body.
    Answer(u16, &'static str, String),
    /// Reads the request and hangs up.
    HangUp,
    /// Reads the request and hangs up; from then on nobody listens.
    Leave,
    /// Reads the request and never answers.
    Hold,
    /// Answers so much later.
    Late(Duration, Box<Act>),
    /// Answers once it is notified.
    When(Arc<Notify>, Box<Act>),
}

/// A server that plays its script and then hangs up on everybody.
pub(crate) struct StandIn {
    pub(crate) url: String,
    heard: Arc<Mutex<Vec<String>>>,
    /// Keeps the port of one that is dead from being anybody else's.
    _kept: Option<TcpSocket>,
}

impl StandIn {
    pub(crate) async fn playing(script: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&heard);
        tokio::spawn(async move {
            let mut held = Vec::new();
            for act in script.into_iter().map(Some).chain(std::iter::repeat_with(|| None)) {
                let (mut socket, _) = listener.accept().await.unwrap();
                let request = hear(&mut socket).await;
                record.lock().unwrap().push(request);
                let act = match act {
                    Some(Act::Late(by, act)) => {
                        tokio::time::sleep(by).await;
                        Some(*act)
                    }
                    Some(Act::When(notify, act)) => {
                        notify.notified().await;
                        Some(*act)
                    }
                    act => act,
                };
                if matches!(act, Some(Act::Leave)) {
                    let address = listener.local_addr().unwrap();
                    drop(listener);
                    // Nobody else gets its port.
                    let kept = TcpSocket::new_v4().unwrap();
                    kept.set_reuseaddr(true).unwrap();
                    kept.bind(address).unwrap();
                    drop(socket);
                    return std::future::pending::<()>().await;
                }
                if matches!(act, Some(Act::Hold)) {
                    held.push(socket);
                } else if let Some(Act::Answer(status, header, body)) = act {
                    let head = format!(
                        "HTTP/1.1 {status} x\r\n{header}connection: close\r\ncontent-length: {}\r\n\r\n",
                        body.len()
                    );
                    socket.write_all((head + &body).as_bytes()).await.unwrap();
                }
            }
        });
        Self { url, heard, _kept: None }
    }

    /// Nobody: an address where nobody listens.
    pub(crate) fn dead() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        Self { url, heard: Arc::default(), _kept: Some(socket) }
    }

    pub(crate) fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap().clone()
    }
}

/// Reads one request, head and body.
async fn hear(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = header(head, "content-length").map_or(0, |length| length.parse().unwrap());
            if body.len() >= length {
                return text;
            }
        }
        if socket.read_buf(&mut bytes).await.unwrap() == 0 {
            return text;
        }
    }
}

pub(crate) fn header(request: &str, name: &str) -> Option<String> {
    request.lines().find_map(|line| {
        let (key, value) = line.split_once(": ")?;
        key.eq_ignore_ascii_case(name).then(|| value.to_owned())
    })
}

pub(crate) fn refused(code: Code, retry_after_ms: Option<u64>) -> Act {
    let mut problem = Problem::new(code, "because");
    problem.retry_after_ms = retry_after_ms;
    Act::Answer(code.status(), "", serde_json::to_string(&problem).unwrap())
}

pub(crate) fn client(servers: &[&StandIn]) -> Client {
    let retry = Retry {
        pause_initial: Duration::from_millis(1),
        pause_max: Duration::from_millis(5),
        attempts_max: 5,
        ..Retry::default()
    };
    let client = Client::new(servers.iter().map(|server| &server.url), Some("t-1")).unwrap();
    client.in_order().with_retry(retry)
}
