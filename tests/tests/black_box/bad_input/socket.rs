//! Requests byte by byte, as no HTTP library would send them, and their answers.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One request. A body of `Some` gets a `Content-Length`.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Option<Vec<u8>>,
}

impl Request {
    pub fn new(method: &str, target: &str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), headers: Vec::new(), body: None }
    }

    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub fn token(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    pub fn json(self, body: impl Into<Vec<u8>>) -> Self {
        self.header("content-type", "application/json").body(body)
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes =
            format!("{} {} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n", self.method, self.target)
                .into_bytes();
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        if let Some(body) = &self.body {
            bytes.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        bytes
    }

    /// Sends it to `127.0.0.1:port…` and reads the answer.
    pub async fn send(&self, address: &str) -> Answer {
        let bytes = converse(address, &self.bytes()).await;
        Answer::parse(&bytes).unwrap_or_else(|| panic!("{self:?}: {:?}", String::from_utf8_lossy(&bytes)))
    }
}

/// Sends bytes and reads until the other side closes.
pub async fn converse(address: &str, bytes: &[u8]) -> Vec<u8> {
    let talk = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The daemon may answer and close before it has read all.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    tokio::time::timeout(Duration::from_secs(30), talk).await.expect("an answer within 30 s")
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        let headers = lines
            .map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
            .collect::<Option<Vec<_>>>()?;
        Some(Self { status, headers, body: bytes[end + 4..].to_vec() })
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(given, _)| given == name).map_or("", |(_, value)| value)
    }

    /// The body, `null` if it is no JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}
