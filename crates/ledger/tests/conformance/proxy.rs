//! A way to the server that breaks: each connection is cut after a random number of bytes, in the middle of
//! whatever is sent, and each side learns only that the other is gone.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Bytes that a connection carries before it is cut, at least and at most: a greeting takes about a thousand.
const BYTES_BEFORE_CUT: std::ops::Range<usize> = 500..20_000;

/// Ends with its connections when dropped.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _listening: JoinSet<()>,
}

struct Shared {
    server: SocketAddr,
    cutting: AtomicBool,
    cuts: AtomicU64,
}

impl Proxy {
    pub async fn before(server: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { server, cutting: AtomicBool::new(false), cuts: AtomicU64::new(0) });
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, shared.clone(), StdRng::seed_from_u64(seed)));
        Self { address, shared, _listening: listening }
    }

    /// Whether connections are cut from now on.
    pub fn set_cutting(&self, cutting: bool) {
        self.shared.cutting.store(cutting, Ordering::Relaxed);
    }

    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

async fn listen(listener: TcpListener, shared: Arc<Shared>, mut rng: StdRng) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (shared, bytes, reset) = (shared.clone(), rng.random_range(BYTES_BEFORE_CUT), rng.random());
        connections.spawn(async move {
            if let Ok(server) = TcpStream::connect(shared.server).await {
                carry(client, server, bytes, reset, &shared).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Carries bytes both ways until either side ends or the bytes are used up.
async fn carry(mut client: TcpStream, mut server: TcpStream, mut bytes: usize, reset: bool, shared: &Shared) {
    let (mut up, mut down) = ([0; 4_096], [0; 4_096]);
    loop {
        let (read, to, from) = tokio::select! {
            read = client.read(&mut up) => (read, &mut server, &up),
            read = server.read(&mut down) => (read, &mut client, &down),
        };
        let Ok(read @ 1..) = read else { return };
        let cutting = shared.cutting.load(Ordering::Relaxed);
        let carried = if cutting { read.min(bytes) } else { read };
        if to.write_all(&from[..carried]).await.is_err() {
            return;
        }
        if carried < read {
            shared.cuts.fetch_add(1, Ordering::Relaxed);
            if reset {
                // Gone at once, unsent bytes included; otherwise an orderly end comes at a disorderly moment.
                let _ = (client.set_zero_linger(), server.set_zero_linger());
            }
            return;
        }
        if cutting {
            bytes -= carried;
        }
    }
}
