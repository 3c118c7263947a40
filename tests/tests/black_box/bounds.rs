//! What one caller cannot do to a daemon: fill its memory, take all its connections, sockets or sessions, or keep it busy
//! with nothing. In each test somebody else is served meanwhile.

mod bodies;
mod connections;
mod leaving;
mod retries;
mod sessions;
mod sockets;

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::http::{Client, Reply};
use testkit::instance::{Instance, Setup};

use crate::patient;

const MIB: usize = 1 << 20;

/// A daemon with the tokens `greedy`, `other` (both `submit` and `node`), `root` (`admin`), and `narrow` (`submit`), which sees
/// the pool `fast` only.
struct Bounded {
    instance: Instance,
    _dir: TempDir,
}

impl Bounded {
    /// With these settings: variables without their prefix.
    async fn start(settings: &[(&str, &str)]) -> Self {
        Self::shaped(settings, |setup| setup).await
    }

    async fn shaped(settings: &[(&str, &str)], shape: impl FnOnce(Setup) -> Setup) -> Self {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("fencepost.toml");
        let tokens = [
            ("greedy", r#"["submit", "node"]"#, ""),
            ("other", r#"["submit", "node"]"#, ""),
            ("root", r#"["admin"]"#, ""),
            ("narrow", r#"["submit"]"#, "pools = [\"fast\"]\n"),
        ];
        let entries = tokens.map(|(name, scopes, sees)| {
            format!("[[auth.tokens]]\nname = \"{name}\"\ntoken = \"{name}\"\nscopes = {scopes}\n{sees}")
        });
        fs::write(&file, entries.concat()).unwrap();
        let mut setup = Setup::in_mode("worker-queue").unwrap().arg("--config").arg(file.to_str().unwrap());
        for (key, value) in settings {
            setup = setup.env(&format!("FENCEPOST__{key}"), value);
        }
        Self { instance: shape(setup).start().await.unwrap(), _dir: dir }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.instance.url())
    }

    /// `HOST:PORT`.
    fn address(&self) -> &str {
        self.instance.url().strip_prefix("http://").unwrap()
    }

    async fn ask(&self, token: &str, method: &str, path: &str, body: Option<&Value>) -> Reply {
        patient().with_token(token).request(method, &self.url(path), None, body).await.unwrap()
    }

    /// What must succeed.
    async fn done(&self, token: &str, method: &str, path: &str, body: Value) -> Value {
        let reply = self.ask(token, method, path, Some(&body)).await;
        assert!((200..300).contains(&reply.status), "{method} {path}: {} {}", reply.status, reply.text);
        reply.body
    }

    /// Another caller grants a nonce and submits a job, and the daemon says that it is well.
    async fn serves_others(&self) {
        self.done("other", "POST", "/v1/signers/other/nonces", json!({})).await;
        self.done("other", "POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await;
        self.is_well(&patient()).await;
    }

    async fn is_well(&self, client: &Client) {
        for path in ["/healthz", "/readyz"] {
            let reply = client.request("GET", &self.url(path), None, None).await.unwrap();
            assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        }
    }

    fn memory(&self) -> usize {
        usize::try_from(self.instance.memory_bytes().unwrap()).unwrap()
    }

    /// The daemon had no defect.
    fn is_sound(&self) {
        let log = self.instance.whole_log();
        for bad in ["panicked", "because of a defect", "Too many open files"] {
            assert!(!log.contains(bad), "{log}");
        }
    }
}
