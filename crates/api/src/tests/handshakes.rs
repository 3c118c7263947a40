//! Connections over TLS whose other sides say nothing.

use client::tls::Pair;
use client::{Client, Retry, TlsOptions};
use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::tls::{Tls, TlsFiles};

/// More than the library has in their handshakes on one thread, unless it is set to take more.
const SILENT: usize = 260;

#[tokio::test]
async fn connections_that_begin_no_handshake_keep_no_other_out() {
    let dir = TempDir::new().unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let pair = Pair { certificate: file("crt", certificate.pem()), key: file("key", key.serialize_pem()) };
    let ca_file = Some(pair.certificate.clone());
    let tls = Some(Tls::read(&TlsFiles { pair, client_ca: None }).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let settings = Settings { workers: 1, tls, ..Settings::new(Auth::open()) };
    let server = open_server(listener, services(&dir).await, settings);
    let handle = server.handle();
    tokio::spawn(server.run());

    let once = Retry { attempts_max: 1, ..Retry::default() };
    let tls = TlsOptions { ca_file, pair: None };
    let client = Client::with_tls([format!("https://{address}")], None, &tls).unwrap().with_retry(once);
    let mut is_served = false;
    for _ in 0..3 {
        let mut silent = Vec::new();
        for _ in 0..SILENT {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        // The client gives up before the time of their handshakes is over.
        is_served = client.health().await.is_ok();
        if is_served {
            break;
        }
    }
    assert!(is_served);
    handle.stop().await;
}
