//! A ledger that can be looked into, what one tenant has in a daemon, and sockets with tokens.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::node::{Message, Socket};
use testkit::servers::{Database, Keyspace};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::operations::Names;
use crate::tokens::{Guarded, first};

/// A ledger and names on Redis for one instance.
pub struct Ground {
    pub database: Database,
    keys: Keyspace,
}

impl Ground {
    pub fn fresh() -> Self {
        tokio::task::block_in_place(|| Self {
            database: Database::migrated().unwrap(),
            keys: Keyspace::fresh().unwrap(),
        })
    }

    /// An instance on it, whose lease is long enough that a busy machine does not end it.
    pub fn setup(&self) -> Setup {
        let setup = Setup::in_mode("worker-queue").unwrap().database(self.database.url());
        let setup = setup.arg("--redis-url").arg(self.keys.url());
        setup
            .env("FENCEPOST__BUS__KEY_PREFIX", self.keys.prefix())
            .env("FENCEPOST__LEASE__INSTANCE_MS", "10000")
    }
}

/// Every row of every table of work. The tables of instances, leases and worker numbers change by themselves: of the leases
/// there are the names.
pub fn dump(database: &Database) -> BTreeMap<String, Vec<String>> {
    const BY_THEMSELVES: [&str; 5] =
        ["instance", "lease", "id_worker", "ledger_identity", "_sqlx_migrations"];
    tokio::task::block_in_place(|| {
        let tables = database
            .query("SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                    WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1")
            .unwrap();
        let tables: Vec<_> = tables.into_iter().map(|mut row| row.remove(0)).collect();
        assert!(tables.len() > 15 && tables.iter().any(|table| table == "job"), "{tables:?}");
        let work = tables.iter().filter(|table| !BY_THEMSELVES.contains(&table.as_str()));
        let rows = work.map(|table| {
            format!("SELECT '{table}', md5(t::text) || ' ' || left(t::text, 300) FROM {table} t")
        });
        let rows: Vec<_> = rows.chain(["SELECT 'lease', resource FROM lease".to_owned()]).collect();
        let mut found: BTreeMap<String, Vec<String>> =
            tables.iter().map(|table| (table.clone(), Vec::new())).collect();
        for row in database.query(&format!("{} ORDER BY 1, 2", rows.join(" UNION ALL "))).unwrap() {
            // A row with a line break in it.
            let [table, text] = &row[..] else { continue };
            found.entry(table.clone()).or_default().push(text.clone());
        }
        found
    })
}

/// The same, once nothing changes any more.
pub fn quiet_dump(database: &Database) -> BTreeMap<String, Vec<String>> {
    let mut last = dump(database);
    loop {
        let now = dump(database);
        if now == last {
            return now;
        }
        last = now;
    }
}

/// Makes some of everything for a tenant, with the token of its name, which [`crate::tokens::of_tenant`] describes.
pub async fn furnish(daemon: &Guarded, name: &str) -> Names {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let signer = format!("{name}:1");
    let granted =
        daemon.done(name, "POST", &format!("/v1/signers/{signer}/nonces"), json!({"hold_ms": 600_000})).await;
    let job = json!({"payload": "secret", "tenant": name, "pool": name, "delay_ms": 600_000});
    let job = daemon.done(name, "POST", "/v1/jobs", job).await;
    let session = daemon.done(name, "POST", "/v1/sessions", json!({"tenant": name})).await;
    let stage = json!({"name": "s0", "payload": 1, "pool": name});
    let plan = json!({"start": false, "tasks": [{"tenant": name, "stages": [stage]}]});
    let plan = text(&daemon.done(name, "POST", "/v1/plans", plan).await["id"]);
    let (_, tasks) = daemon.ask(name, "GET", &format!("/v1/plans/{plan}/tasks"), None).await;
    Names {
        signer,
        hold: text(&granted["grants"][0]["hold"]),
        job: text(&job["id"]),
        session: text(&session["id"]),
        plan,
        task: text(&tasks["items"][0]["id"]),
        tenant: name.to_owned(),
        pool: name.to_owned(),
        node: format!("{name}-1"),
        lock: 1,
    }
}

/// A node's socket that was welcomed.
pub async fn node(daemon: &Guarded, token: &str, node: &str, pool: &str) -> Socket {
    let mut socket = daemon.hello(token, node, json!([pool])).await;
    assert_eq!(first(&mut socket).await, "welcome");
    socket
}

/// A frame of this type. The type comes first.
pub fn message(kind: &str, fields: &Value) -> Message {
    let fields = fields.to_string();
    let rest = fields.strip_prefix('{').unwrap();
    let comma = if rest == "}" { "" } else { "," };
    Message::text(format!(r#"{{"type":"{kind}"{comma}{rest}"#))
}

/// Keeps a node connected that says that it runs these, whatever it is sent.
pub fn keep(mut socket: Socket, running: Value) -> JoinHandle<()> {
    let heartbeat = message("heartbeat", &json!({ "running": running }));
    tokio::spawn(async move {
        let mut beats = tokio::time::interval(Duration::from_millis(500));
        loop {
            tokio::select! {
                _ = beats.tick() => if socket.send(heartbeat.clone()).await.is_err() {
                    return;
                },
                said = socket.next() => if !matches!(said, Some(Ok(_))) {
                    return;
                },
            }
        }
    })
}

/// The next frame of a type.
pub async fn frame(socket: &mut Socket, wanted: &str) -> Value {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                if frame["type"] == wanted {
                    return frame;
                }
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            other => panic!("{other:?} instead of {wanted}"),
        }
    }
}

/// The client's socket of a session.
pub async fn session_socket(url: &str, token: &str, session: &str) -> WebSocketStream<TcpStream> {
    let address = url.strip_prefix("http://").unwrap();
    let mut request = format!("ws://{address}/v1/sessions/{session}/ws").into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request.headers_mut().insert("sec-websocket-protocol", "fencepost.v1".parse().unwrap());
    let stream = TcpStream::connect(address).await.unwrap();
    tokio_tungstenite::client_async(request, stream).await.unwrap().0
}
