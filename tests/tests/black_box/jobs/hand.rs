//! A node of which each frame is written by hand.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::node::{Message, Socket};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use super::rig::{PATIENCE, Rig, with};

/// A node of which each frame is written by hand.
pub struct Hand {
    pub socket: Socket,
}

impl Hand {
    pub async fn open(rig: &Rig, index: usize) -> Self {
        Self { socket: Socket::connect(&rig.urls[index]).await.unwrap() }
    }

    /// Connected as a node with one place, which runs these.
    pub async fn greeted(rig: &Rig, index: usize, name: &str, running: Value) -> Self {
        let mut hand = Self::open(rig, index).await;
        hand.say(json!({"type": "hello", "node_id": name, "capacity": 1, "running": running})).await;
        let welcome = hand.hear("welcome").await;
        assert_eq!(welcome["node_id"], name);
        hand
    }

    pub async fn say(&mut self, frame: Value) {
        self.text(written(&frame)).await;
    }

    /// Keeps its beat and says nothing else; nor does it mind being hung up on. Never comes back.
    pub async fn beat(&mut self) {
        loop {
            let _ = self.socket.send(Message::text(written(&heartbeat(json!([]))))).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    pub async fn text(&mut self, text: String) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// The next frame of this type.
    pub async fn hear(&mut self, kind: &str) -> Value {
        self.any(&[kind]).await
    }

    /// The next frame of any of these types.
    pub async fn any(&mut self, kinds: &[&str]) -> Value {
        loop {
            let frame = self.next().await;
            if kinds.iter().any(|kind| frame["type"] == *kind) {
                return frame;
            }
        }
    }

    /// The next frame of this type, if it comes in time.
    pub async fn within(&mut self, time: Duration, kind: &str) -> Option<Value> {
        tokio::time::timeout(time, self.any(&[kind])).await.ok()
    }

    /// Waits for the next frame of a type; none of the other type may come before.
    pub async fn quiet_until(&mut self, kind: &str, unwanted: &str) {
        let frame = self.any(&[kind, unwanted]).await;
        assert_eq!(frame["type"], kind, "{frame}");
    }

    async fn next(&mut self) -> Value {
        let message = tokio::time::timeout(PATIENCE, self.socket.next()).await;
        let message = message.expect("something is heard").unwrap().unwrap();
        let Message::Text(text) = message else { panic!("a frame was awaited, not {message:?}") };
        serde_json::from_str(&text).unwrap()
    }

    /// The next dispatch, as `job` and `attempt`.
    pub async fn given(&mut self) -> Value {
        let dispatch = self.hear("dispatch").await;
        json!({"job": dispatch["job"], "attempt": dispatch["attempt"]})
    }

    /// The code with which the socket is closed.
    pub async fn closed(self) -> u16 {
        self.end().await.unwrap_or_else(|end| panic!("closed without a code: {end}"))
    }

    /// The code with which the socket is closed, or how it ends without one.
    pub async fn end(mut self) -> Result<u16, String> {
        loop {
            match tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("the socket is closed") {
                Some(Ok(Message::Close(Some(frame)))) => return Ok(frame.code.into()),
                Some(Ok(_)) => {}
                other => return Err(format!("{other:?}")),
            }
        }
    }
}

/// A close frame.
pub fn closing(code: u16) -> Message {
    Message::Close(Some(CloseFrame { code: code.into(), reason: "enough".into() }))
}

/// A frame as it travels: its type comes first.
pub fn written(frame: &Value) -> String {
    let mut rest = frame.as_object().unwrap().clone();
    let kind = rest.remove("type").unwrap();
    let rest = Value::from(rest).to_string();
    let comma = if rest == "{}" { "" } else { "," };
    format!("{{\"type\":{kind}{comma}{}", &rest[1..])
}

pub fn frame(kind: &str, of: &Value, more: Value) -> Value {
    with(with(json!({ "type": kind }), of.clone()), more)
}

pub fn done(of: &Value, output: impl Into<Value>) -> Value {
    frame("result", of, json!({"ok": true, "output": output.into()}))
}

pub fn heartbeat(running: Value) -> Value {
    json!({"type": "heartbeat", "running": running})
}
