//! HTTP/1.1 on a plain socket, as little of it as a load generator needs: the request's bytes are
//! made once, of the answer only the status and the length are read. A full HTTP client costs more
//! than the daemon's answer does, and would be what is measured.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ANSWER_BYTES_MAX: usize = 4 << 20;

/// A keep-alive connection.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    buffer: Vec<u8>,
}

/// The bytes of a request to `host` (`ADDR:PORT`).
#[must_use]
pub fn request(method: &str, host: &str, path: &str, body: Option<&str>) -> Vec<u8> {
    let body = body.unwrap_or_default();
    let content = match body.len() {
        0 => String::new(),
        length => format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"),
    };
    format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{content}\r\n{body}").into_bytes()
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn open(host: &str) -> Result<Self> {
        let socket = TcpStream::connect(host).await.with_context(|| format!("connecting to {host}"))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: Vec::with_capacity(16 << 10) })
    }

    /// Whether the other side has closed it while nothing was under way. Costs nothing where it has not:
    /// the runtime knows that there is nothing to be read.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        !matches!(self.socket.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Sends a request and reads the whole answer; gives its status and its body.
    ///
    /// # Errors
    /// The connection ends, or the answer names no length.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<(u16, &[u8])> {
        self.socket.write_all(request).await?;
        self.buffer.clear();
        loop {
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                bail!("the connection ended before the answer did");
            }
            if let Some((status, begin, total)) = head(&self.buffer)? {
                if total > ANSWER_BYTES_MAX {
                    bail!("an answer of {total} bytes");
                }
                while self.buffer.len() < total {
                    if self.socket.read_buf(&mut self.buffer).await? == 0 {
                        bail!("the connection ended within an answer");
                    }
                }
                return Ok((status, &self.buffer[begin..total]));
            }
            if self.buffer.len() > ANSWER_BYTES_MAX {
                bail!("an answer without end");
            }
        }
    }
}

/// Status, and where the body begins and ends, once the head is there.
fn head(bytes: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = std::str::from_utf8(&bytes[..end])?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).context("a status line")?.parse()?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())
    });
    let length = length.context("an answer with a length")??;
    Ok(Some((status, end + 4, end + 4 + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_the_server_has_closed_is_stale() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection = Connection::open(&listener.local_addr().unwrap().to_string()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(!connection.is_stale());
        drop(accepted);
        connection.socket.readable().await.unwrap();
        assert!(connection.is_stale());
    }

    #[test]
    fn an_answer_is_measured_once_its_head_is_there() {
        assert_eq!(head(b"HTTP/1.1 201 Created\r\ncontent-le").unwrap(), None);
        let whole = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nx: y\r\n\r\n{}";
        assert_eq!(head(whole).unwrap(), Some((201, whole.len() - 2, whole.len())));
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
