//! What a server says before anything is sent to it. One that takes no more clients says so, and closes the connection. The
//! driver has sent something by then, and so sees a lost connection alone.

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::failure;
use crate::Error;
use crate::limits::{FIRST_WORDS_BYTES_MAX, FIRST_WORDS_MS};

/// The same failure of a new connection, or, where it was lost at once, the words of a server that closes each.
pub(super) async fn explained(server: &ConnectionInfo, error: Error) -> Error {
    if !failure::is_lost(&error) {
        return error;
    }
    match tokio::time::timeout(Duration::from_millis(FIRST_WORDS_MS), first_words(server)).await {
        Ok(Some(said)) => failure::turned_away(&said),
        Ok(None) | Err(_) => error,
    }
}

/// Nothing over TLS, which begins with words of the client.
async fn first_words(server: &ConnectionInfo) -> Option<String> {
    let ConnectionAddr::Tcp(host, port) = server.addr() else { return None };
    let connection = TcpStream::connect((host.as_str(), *port)).await.ok()?;
    let mut said = Vec::new();
    // What came before a failure counts.
    let _ = connection.take(FIRST_WORDS_BYTES_MAX).read_to_end(&mut said).await;
    refusal(&said)
}

/// The first line, if it is a refusal.
fn refusal(said: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(said.strip_prefix(b"-")?);
    let line: String = text.lines().next()?.chars().filter(|c| !c.is_control()).collect();
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refusal_is_quoted_and_of_that_one_line() {
        let full = b"-ERR max number of clients reached\r\nmore";
        assert_eq!(refusal(full).as_deref(), Some("ERR max number of clients reached"));
        for other in [&b""[..], b"-", b"-\r\n", b"+OK\r\n", b"HTTP/1.1 400 Bad Request\r\n"] {
            assert_eq!(refusal(other), None, "{other:?}");
        }
    }
}
