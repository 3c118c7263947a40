//! A session's client, which writes its frames by hand; and how tests open sessions and find their owners.

use std::collections::HashSet;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::rig::{PATIENCE, Rig, with};
use crate::until;

/// A session's client, which writes its frames by hand.
pub struct Talk {
    pub socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Talk {
    pub async fn open(rig: &Rig, index: usize, session: &str, after_seq: Option<u64>) -> Self {
        let after = after_seq.map(|seq| format!("?after_seq={seq}")).unwrap_or_default();
        let url = format!("{}/v1/sessions/{session}/ws{after}", rig.urls[index].replace("http", "ws"));
        let (socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        Self { socket }
    }

    pub async fn text(&mut self, text: impl Into<String>) {
        self.socket.send(Message::text(text.into())).await.unwrap();
    }

    /// A job under a name.
    pub async fn job(&mut self, client_ref: &str, job: Value) {
        let job = with(job, json!({ "ref": client_ref })).to_string();
        self.text(format!(r#"{{"type":"job",{}"#, &job[1..])).await;
    }

    /// The next frame that is none of progress.
    pub async fn next(&mut self) -> Value {
        loop {
            let frame = self.any().await;
            if frame["type"] != "progress" {
                return frame;
            }
        }
    }

    pub async fn any(&mut self) -> Value {
        let until = tokio::time::Instant::now() + PATIENCE;
        loop {
            let message = tokio::time::timeout_at(until, self.socket.next()).await.expect("a frame");
            match message.unwrap().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("a frame was awaited, not {other:?}"),
            }
        }
    }

    /// The next so many frames that are none of progress, of which results and others by their order.
    pub async fn results(&mut self, count: usize) -> Vec<Value> {
        let mut results = Vec::new();
        while results.len() < count {
            let frame = self.next().await;
            match frame["type"].as_str().unwrap() {
                "result" => results.push(frame),
                "accepted" => {}
                _ => panic!("a result was awaited, not {frame}"),
            }
        }
        results
    }

    /// The code with which the socket is closed.
    pub async fn closed(mut self) -> u16 {
        loop {
            match tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("the socket is closed") {
                Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
                Some(Ok(_)) => {}
                other => panic!("closed without a code: {other:?}"),
            }
        }
    }
}

pub async fn open(rig: &Rig, index: usize, asked: Value) -> String {
    let opened = rig.post(index, "/v1/sessions", Some(&asked), 201).await;
    opened["id"].as_str().unwrap().to_owned()
}

/// So many instances, which agree on the ring.
pub async fn together(count: usize) -> Rig {
    let rig = Rig::together(count).await;
    settled(&rig).await;
    rig
}

/// Waits until the instances agree on the ring: young ones move keys about.
pub async fn settled(rig: &Rig) {
    until("the ring is settled", async || {
        let mut owners = HashSet::new();
        for key in 0..40 {
            let mut of_key = HashSet::new();
            for index in 0..rig.urls.len() {
                let owner = rig.get(index, &format!("/v1/cluster/owner/session:{key}")).await;
                of_key.insert(owner["instance_id"].to_string());
            }
            if of_key.len() > 1 {
                return false;
            }
            owners.extend(of_key);
        }
        owners.len() == rig.urls.len()
    })
    .await;
}

pub fn seqs(results: &[Value]) -> Vec<u64> {
    results.iter().map(|result| result["seq"].as_u64().unwrap()).collect()
}

/// The instance that owns a session.
pub async fn owner(rig: &Rig, asked: usize, session: &str) -> usize {
    let lease = rig.get(asked, &format!("/v1/leases/session:{session}")).await;
    let cluster = rig.get(asked, "/v1/cluster").await;
    let instances = cluster["instances"].as_array().unwrap();
    let of = |instance: &&Value| instance["instance_id"] == lease["owner"];
    let url = instances.iter().find(of).unwrap()["url"].as_str().unwrap();
    rig.urls.iter().position(|known| known == url).unwrap()
}
