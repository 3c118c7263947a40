//! Servers that do not speak HTTP.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// The first byte of a client's hello of TLS.
const HANDSHAKE: u8 = 22;
/// The answers of a server of TLS: to a hello that it does not accept, and to what is no TLS.
const NO_HANDSHAKE: &[u8] = &[21, 3, 3, 0, 2, 2, 40];
const NO_RECORD: &[u8] = &[21, 3, 3, 0, 2, 2, 50];
/// What another server says to everybody.
const SSH: &[u8] = b"SSH-2.0-x\r\n";

/// The `http://` URL of a server that answers so to TLS and so to anything else, and how often it was asked the latter.
async fn stranger(to_tls: &'static [u8], to_others: &'static [u8]) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let counted = Arc::clone(&counted);
            tokio::spawn(async move {
                let Ok(first) = socket.read_u8().await else { return };
                let answer = if first == HANDSHAKE {
                    to_tls
                } else {
                    counted.fetch_add(1, Ordering::Relaxed);
                    to_others
                };
                socket.write_all(answer).await.unwrap();
                // What nobody reads would end the connection before its answer is read.
                let _ = socket.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    (url, asked)
}

/// A client that gives up after two attempts, unless an instance is there.
fn client_of(url: &str) -> Client {
    Client::new([url], Some("t-1")).unwrap().with_retry(Retry { attempts_max: 2, ..Retry::default() })
}

#[tokio::test]
async fn a_server_that_speaks_tls_has_read_nothing_and_is_told_of_with_its_url() {
    let (url, asked) = stranger(NO_HANDSHAKE, NO_RECORD).await;
    let client = client_of(&url);
    let said = format!("speaks TLS, not HTTP: use {}", url.replace("http", "https"));
    let error = grant(&client).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }) && !error.may_be_done(), "{error:?}");
    assert!(error.to_string().ends_with(&said), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let error = client.dialer.open(&client.bases[0], &["v1", "nodes", "ws"], &[]).await.err().unwrap();
    assert!(matches!(error, Error::Unreachable { .. }) && error.to_string().ends_with(&said), "{error:?}");
}

#[tokio::test]
async fn what_speaks_neither_http_nor_tls_leaves_the_doubt_and_is_not_asked_for_long() {
    let (url, asked) = stranger(SSH, SSH).await;
    let client = client_of(&url);
    let said = format!("; if it speaks TLS, use {}", url.replace("http", "https"));
    let error = grant(&client).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }) && error.may_be_done(), "{error:?}");
    assert!(
        error.to_string().contains("does not speak HTTP") && error.to_string().ends_with(&said),
        "{error}"
    );
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    let error = client.dialer.open(&client.bases[0], &["v1", "nodes", "ws"], &[]).await.err().unwrap();
    assert!(matches!(error, Error::Unreachable { .. }) && error.to_string().ends_with(&said), "{error:?}");
}
