//! A real browser: headless Chromium with a profile of its own, driven through its debugging protocol.

use std::collections::VecDeque;
use std::process::Command;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::process::{Launch, Process, tail};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::until;

/// The program that Debian's script `chromium-headless-shell` starts. The end of the script alone would leave the browser.
const PROGRAM: &str = "/usr/lib/chromium/chromium-headless-shell";
/// How long one step of a page may take.
const STEP_MAX: Duration = Duration::from_secs(300);

/// One page of a browser. The browser ends with it.
pub struct Chromium {
    socket: WebSocketStream<TcpStream>,
    page: String,
    asked: u64,
    /// Names of the page's events that nobody has waited for.
    events: VecDeque<String>,
    // Before the profile: the browser ends before its files go.
    _process: Process,
    _profile: TempDir,
}

impl Chromium {
    /// Starts a browser that looks names up by these rules, and is no more careful with pages of this machine than older
    /// browsers are.
    pub async fn start(host_rules: &str) -> Self {
        let profile = TempDir::with_prefix("fencepost-chromium-").unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-extensions"])
            .args(["--no-proxy-server", "--remote-debugging-port=0"])
            .arg("--disable-features=LocalNetworkAccessChecks,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable")
            .arg(format!("--host-resolver-rules={host_rules}"))
            .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
            .arg("about:blank");
        let log = profile.path().join("stderr.log");
        let launch = Launch { stdout: &profile.path().join("stdout.log"), ..Launch::logging(&command, &log) };
        let (process, _) = Process::spawn(&launch).unwrap();
        let port_file = profile.path().join("profile/DevToolsActivePort");
        let mut door = String::new();
        until("the browser can be driven", async || {
            assert_eq!(
                process.exited(),
                None,
                "chromium-headless-shell (tests/install installs it): {}",
                tail(&log, 4_000)
            );
            door = std::fs::read_to_string(&port_file).unwrap_or_default();
            door.lines().count() == 2
        })
        .await;
        let (port, path) = door.trim().split_once('\n').unwrap();
        let address = format!("127.0.0.1:{port}");
        let stream = TcpStream::connect(&address).await.unwrap();
        let (socket, _) =
            tokio_tungstenite::client_async(format!("ws://{address}{path}"), stream).await.unwrap();
        let (page, events) = (String::new(), VecDeque::new());
        let mut browser = Self { socket, page, asked: 0, events, _process: process, _profile: profile };
        let target =
            browser.call("Target.createTarget", json!({"url": "about:blank"})).await["targetId"].clone();
        let attached =
            browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true})).await;
        attached["sessionId"].as_str().unwrap().clone_into(&mut browser.page);
        browser.call("Page.enable", json!({})).await;
        browser
    }

    /// Opens an address, whatever the status of the answer is, and waits until the page is loaded.
    pub async fn open(&mut self, url: &str) {
        self.events.clear();
        let opened = self.call("Page.navigate", json!({ "url": url })).await;
        assert_eq!(opened["errorText"], Value::Null, "{url}: {opened}");
        while !self.events.iter().any(|event| event == "Page.loadEventFired") {
            self.read().await;
        }
    }

    /// What an expression is in the page; a promise is waited for.
    pub async fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", asked).await;
        assert_eq!(answer["exceptionDetails"], Value::Null, "{answer}");
        answer["result"]["value"].clone()
    }

    /// Ends the browser, and waits until nothing of it is left that could be driven.
    pub async fn end(self) {
        let door = self.socket.get_ref().peer_addr().unwrap();
        drop(self);
        until("the browser has ended", async || TcpStream::connect(door).await.is_err()).await;
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let mut message = json!({"id": self.asked, "method": method, "params": params});
        if !self.page.is_empty() {
            message["sessionId"] = json!(self.page);
        }
        self.socket.send(Message::text(message.to_string())).await.unwrap();
        loop {
            let answer = self.read().await;
            if answer["id"] == self.asked {
                assert_eq!(answer["error"], Value::Null, "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// The next message. Events are kept.
    async fn read(&mut self) -> Value {
        loop {
            let message =
                tokio::time::timeout(STEP_MAX, self.socket.next()).await.expect("the browser answers");
            if let Message::Text(text) = message.expect("the browser runs on").unwrap() {
                let message: Value = serde_json::from_str(&text).unwrap();
                if let Some(event) = message["method"].as_str() {
                    self.events.push_back(event.to_owned());
                }
                return message;
            }
        }
    }
}
