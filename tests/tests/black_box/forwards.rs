//! What instances say to each other over HTTP: a forwarded request is its caller's, the caller's token does not travel,
//! and nobody else can say that an instance forwarded a request.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use testkit::PATIENCE;
use testkit::instance::{Instance, Setup};
use testkit::ports;
use testkit::servers::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{patient, until};

const SECRET: &str = "the-secret-of-all-instances-of-this-test";

fn tokens(entries: &[Value]) -> String {
    Value::from(entries.to_vec()).to_string()
}

fn token(name: &str, scope: &str) -> Value {
    json!({ "name": name, "token": format!("secret-of-{name}"), "scopes": [scope] })
}

/// What a client sent to one instance by way of another port.
#[derive(Clone, Default)]
struct Recorded {
    sent: Arc<Mutex<Vec<u8>>>,
    /// Refusals that the next cancellations get instead of being passed on.
    refusals: Arc<Mutex<Vec<Value>>>,
}

impl Recorded {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.sent.lock()).into_owned()
    }

    /// The answer to what a client sent, if it is to be refused.
    fn refusal_of(&self, sent: &[u8]) -> Option<String> {
        if !String::from_utf8_lossy(sent).contains("/cancel HTTP/1.1") {
            return None;
        }
        let body = self.refusals.lock().pop()?.to_string();
        let head = "HTTP/1.1 409 Conflict\r\ncontent-type: application/problem+json\r\nconnection: close";
        Some(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()))
    }

    /// Passes all connections on to `target` and keeps what is sent there.
    async fn relay(self, listener: TcpListener, target: String) {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let (recorded, target) = (self.clone(), target.clone());
            tokio::spawn(async move {
                let Ok(server) = TcpStream::connect(target).await else { return };
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let back = tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                    to_client
                });
                let mut buffer = vec![0; 64 << 10];
                while let Ok(bytes @ 1..) = from_client.read(&mut buffer).await {
                    recorded.sent.lock().extend_from_slice(&buffer[..bytes]);
                    if let Some(refusal) = recorded.refusal_of(&buffer[..bytes]) {
                        // Nothing is under way there: the server ends the connection.
                        drop(to_server);
                        back.await.unwrap().write_all(refusal.as_bytes()).await.unwrap();
                        return;
                    }
                    if to_server.write_all(&buffer[..bytes]).await.is_err() {
                        break;
                    }
                }
                drop(to_server);
                let _ = back.await;
            });
        }
    }
}

/// Two instances; what the first says to the second is recorded.
struct Two {
    near: Instance,
    far: Instance,
    /// Where the first reaches the second.
    far_url: String,
    recorded: Recorded,
    relay: tokio::task::JoinHandle<()>,
}

impl Two {
    async fn start(near: &[Value], far: &[Value]) -> Self {
        Self::with_secrets((near, SECRET), (far, SECRET)).await
    }

    async fn with_secrets(near: (&[Value], &str), far: (&[Value], &str)) -> Self {
        let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
        let setup = |(entries, secret): (&[Value], &str), listen: &str| {
            Setup::bare()
                .arg("--listen")
                .arg(listen)
                .database(database.url())
                .env("FENCEPOST__AUTH__TOKENS", &tokens(entries))
                .env("FENCEPOST__CLUSTER__SECRET", secret)
                .env("FENCEPOST__LEASE__INSTANCE_MS", "10000")
        };
        let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far_url = format!("http://{}", relay.local_addr().unwrap());
        let [near_at, far_at] = [(); 2].map(|()| format!("127.0.0.1:{}", ports::free().unwrap()));
        let recorded = Recorded::default();
        let relay = tokio::spawn(recorded.clone().relay(relay, far_at.clone()));
        let far = setup(far, &far_at).arg("--advertise").arg(&far_url).start();
        let (near, far) = tokio::try_join!(setup(near, &near_at).start(), far).unwrap();
        let two = Self { near, far, far_url, recorded, relay };
        until("both are on the ring", async || {
            let mut counts = Vec::new();
            for url in [two.near.url(), two.far.url()] {
                let (_, cluster) = two.ask("root", "GET", &format!("{url}/v1/cluster"), None).await;
                let on_ring = cluster["instances"].as_array().unwrap().iter();
                counts.push(on_ring.filter(|one| one["on_ring"] == true).count());
            }
            counts == [2, 2]
        })
        .await;
        two
    }

    async fn ask(&self, name: &str, method: &str, url: &str, key: Option<&str>) -> (u16, Value) {
        let client = patient().with_token(&format!("secret-of-{name}"));
        let reply = client.request(method, url, key, None).await.unwrap();
        (reply.status, reply.body)
    }

    /// A signer that the ring puts at the second instance.
    async fn signer_there(&self) -> String {
        for number in 0..1_000 {
            let signer = format!("signer-{number}");
            let url = format!("{}/v1/cluster/owner/signer:{signer}", self.near.url());
            if self.ask("root", "GET", &url, None).await.1["url"] == self.far_url.as_str() {
                return signer;
            }
        }
        panic!("the ring puts nothing there");
    }

    fn id(instance: &Instance) -> &str {
        &instance.ready().instance
    }
}

/// A forwarded request, as an instance of this cluster would send it.
#[derive(Clone)]
struct Forged {
    secret: &'static str,
    age_ms: i64,
    to: String,
    path: String,
    principal: &'static str,
    body: &'static str,
}

impl Forged {
    fn credential(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        let at_ms = now - self.age_ms;
        let keyed = |key: &[u8]| Hmac::<Sha256>::new_from_slice(key).unwrap();
        let mut key = keyed(self.secret.as_bytes());
        key.update(b"fencepost forwarded request v1");
        let mut mac = keyed(&key.finalize().into_bytes());
        let digest = Sha256::digest(self.body);
        let at = at_ms.to_be_bytes();
        let parts: [&[u8]; 7] = [
            &at,
            b"other-1",
            self.to.as_bytes(),
            b"POST",
            self.path.as_bytes(),
            self.principal.as_bytes(),
            &digest,
        ];
        let present = parts.map(Some).into_iter();
        // Content type, idempotency key, request id, places.
        for part in present.chain([Some(&b"application/json"[..]), Some(b"k-1"), Some(b"r-1"), None]) {
            mac.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            mac.update(part.unwrap_or_default());
        }
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (name, mac) = (encode(self.principal.as_bytes()), encode(&mac.finalize().into_bytes()));
        format!("v1.{at_ms}.{name}.{}.{mac}", encode(&digest))
    }

    /// Sends it with this credential and, where one is given, a token of its own.
    async fn send(
        &self,
        url: &str,
        credential: Option<&str>,
        body: &'static str,
        token: Option<&str>,
    ) -> (u16, Value) {
        let http = testkit::http::plain_http(PATIENCE).unwrap();
        let mut request = http
            .post(format!("{url}{}", self.path))
            .header("x-fencepost-forwarded-by", "other-1")
            .header("x-fencepost-forwarded-to", &self.to)
            .header("content-type", "application/json")
            .header("idempotency-key", "k-1")
            .header("x-request-id", "r-1")
            .body(body);
        if let Some(credential) = credential {
            request = request.header("x-fencepost-credential", credential);
        }
        if let Some(token) = token {
            request = request.bearer_auth(format!("secret-of-{token}"));
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.headers()["x-request-id"], "r-1");
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn sent(&self, url: &str) -> (u16, Value) {
        self.send(url, Some(&self.credential()), self.body, None).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_request_is_its_callers_and_the_callers_token_does_not_travel() {
    let blind =
        json!({ "name": "blind", "token": "secret-of-blind", "scopes": ["submit"], "signers": ["x:*"] });
    let entries = [token("root", "admin"), token("one", "submit"), token("other", "submit"), blind];
    let two = Two::start(&entries, &entries).await;
    let signer = two.signer_there().await;
    let nonces = |url: &str| format!("{url}/v1/signers/{signer}/nonces");
    let (near, far) = (nonces(two.near.url()), nonces(two.far.url()));
    let grant = async |name: &str, url: &str| {
        let (status, granted) = two.ask(name, "POST", url, Some("key-1")).await;
        assert_eq!((status, &granted["owner"]), (201, &json!(Two::id(&two.far))), "{granted}");
        granted["grants"][0]["nonce"].as_u64().unwrap()
    };
    // One idempotency key, two callers; directly and by way of the first instance it is the same request.
    let granted = [grant("one", &near).await, grant("other", &near).await, grant("one", &near).await];
    assert_eq!(granted, [0, 1, 0]);
    assert_eq!([grant("one", &far).await, grant("other", &far).await], [0, 1]);
    assert_eq!(two.ask("blind", "POST", &near, None).await.0, 404);
    // An operator's action on another instance is the operator's.
    let job = format!("{}/v1/jobs", two.far.url());
    let delayed = json!({ "payload": 1, "delay_ms": 600_000 });
    let client = patient().with_token("secret-of-one");
    let job = client.request("POST", &job, None, Some(&delayed)).await.unwrap().body;
    let cancel = format!("{}/v1/jobs/{}/cancel", two.near.url(), job["id"].as_str().unwrap());
    let (status, cancelled) = two.ask("root", "POST", &cancel, None).await;
    assert_eq!(status, 200, "{cancelled}");
    let audit = format!("{}/v1/audit?action=cancel_job", two.near.url());
    let (_, audit) = two.ask("root", "GET", &audit, None).await;
    assert_eq!(audit["items"][0]["principal"], "root", "{audit}");
    let heard = two.recorded.text().to_ascii_lowercase();
    assert!(heard.contains("x-fencepost-credential: v1."), "{heard}");
    assert!(heard.contains("/cancel"), "{heard}");
    assert!(!heard.contains("authorization") && !heard.contains("secret-of"), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_clusters_secret_makes_a_request_a_forwarded_one() {
    let entries = [token("root", "admin"), token("reader", "read")];
    let two = Two::start(&entries, &entries).await;
    let signer = two.signer_there().await;
    let (near, far) = (two.near.url(), two.far.url());
    let good = Forged {
        secret: SECRET,
        age_ms: 0,
        to: Two::id(&two.far).to_owned(),
        path: format!("/v1/signers/{signer}/nonces"),
        principal: "root",
        body: "{}",
    };
    // A good one is served as its caller's, and says the same again when it is repeated.
    let credential = good.credential();
    let (status, first) = good.send(far, Some(&credential), "{}", None).await;
    assert_eq!(status, 201, "{first}");
    let (_, again) = good.send(far, Some(&credential), "{}", None).await;
    assert_eq!(again["grants"][0]["nonce"], first["grants"][0]["nonce"], "{again}");
    let own = two.ask("root", "POST", &format!("{far}{}", good.path), Some("k-1")).await.1;
    assert_eq!(own["grants"][0]["nonce"], first["grants"][0]["nonce"], "it is the same caller's key: {own}");
    // It is good at its own instance alone, and for its own body.
    let (status, refused) = good.send(near, Some(&credential), "{}", None).await;
    assert_eq!((status, &refused["code"]), (409, &json!("not_owner")), "{refused}");
    let (status, refused) = good.send(far, Some(&credential), "[]", None).await;
    assert_eq!((status, &refused["code"]), (401, &json!("unauthorized")), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("body"), "{refused}");
    // Everything else is the client's own request, which here has no token.
    for bad in [
        Forged { secret: "another-secret-of-another-cluster-0", ..good.clone() },
        Forged { age_ms: 60_000, ..good.clone() },
        Forged { age_ms: -60_000, ..good.clone() },
        Forged { principal: "nobody", ..good.clone() },
    ] {
        let (status, refused) = bad.sent(far).await;
        assert_eq!((status, &refused["code"]), (401, &json!("unauthorized")), "{refused}");
    }
    let moved = Forged { path: "/v1/signers/another/nonces".to_owned(), ..good.clone() };
    assert_eq!(moved.send(far, Some(&credential), "{}", None).await.0, 401);
    assert_eq!(good.send(far, None, "{}", None).await.0, 401);
    assert_eq!(good.send(far, Some("v1.nonsense"), "{}", None).await.0, 401);
    let (status, refused) = Forged { principal: "reader", ..good.clone() }.sent(far).await;
    assert_eq!((status, &refused["code"]), (403, &json!("forbidden")), "{refused}");
    // With a token it is served as any other request: here it is brought to the owner.
    for credential in [None, Some("v1.nonsense")] {
        let (status, granted) = good.send(near, credential, "{}", Some("root")).await;
        assert_eq!((status, &granted["owner"]), (201, &json!(Two::id(&two.far))), "{granted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_forwarded_is_served_or_refused_and_never_forwarded_again() {
    let entries = [token("root", "admin")];
    let two = Two::start(&entries, &entries).await;
    let signer = two.signer_there().await;
    let to_near = Forged {
        secret: SECRET,
        age_ms: 0,
        to: Two::id(&two.near).to_owned(),
        path: format!("/v1/signers/{signer}/nonces"),
        principal: "root",
        body: "{}",
    };
    // Nobody has the lease: the instance that is asked serves, though the ring names another. A hand-off may come
    // before the grant.
    until("it serves", async || {
        let (status, answer) = to_near.sent(two.near.url()).await;
        assert!(status == 201 || answer["code"] == "not_owner", "{answer}");
        status == 201 && answer["owner"] == Two::id(&two.near)
    })
    .await;
    // The key goes where it belongs, and then the other refuses and names the owner. A request that reaches the other
    // between its release of the lease and the owner's acquisition gives it the lease once more: so the answer's owner
    // counts. A refusal names an owner too.
    let nonces = format!("{}{}", two.far.url(), to_near.path);
    until("it was handed off", async || {
        let (status, granted) = two.ask("root", "POST", &nonces, None).await;
        status == 201 && granted["owner"] == Two::id(&two.far)
    })
    .await;
    let (status, refused) = to_near.sent(two.near.url()).await;
    assert_eq!((status, &refused["code"]), (409, &json!("not_owner")), "{refused}");
    assert_eq!(refused["owner_url"], two.far_url.as_str(), "{refused}");
    assert!(refused["retry_after_ms"].is_u64(), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_a_refused_cancellation_names_is_asked_once_and_its_address_is_told() {
    let entries = [token("root", "admin")];
    let two = Two::start(&entries, &entries).await;
    let client = patient().with_token("secret-of-root");
    let delayed = json!({ "payload": 1, "delay_ms": 3_600_000 });
    let jobs = format!("{}/v1/jobs", two.far.url());
    let job = client.request("POST", &jobs, None, Some(&delayed)).await.unwrap().body;
    let path = format!("/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
    let to_near = Forged {
        secret: SECRET,
        age_ms: 0,
        to: Two::id(&two.near).to_owned(),
        path: path.clone(),
        principal: "root",
        body: "{}",
    };
    let (status, refused) = to_near.sent(two.near.url()).await;
    assert_eq!((status, &refused["code"]), (409, &json!("not_owner")), "{refused}");
    assert_eq!(refused["owner"], Two::id(&two.far), "{refused}");
    assert_eq!(refused["owner_url"], two.far_url.as_str(), "{refused}");

    // The owner refuses as if it were none, and names itself.
    let near = format!("{}{path}", two.near.url());
    for (refusals, expected) in [(2, 409), (1, 200)] {
        *two.recorded.refusals.lock() = vec![refused.clone(); refusals];
        let (status, answer) = two.ask("root", "POST", &near, None).await;
        assert_eq!(status, expected, "after {refusals}: {answer}");
        assert!(two.recorded.refusals.lock().is_empty(), "after {refusals}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whom_the_owner_does_not_know_is_told_the_owners_address() {
    let (root, extra) = (token("root", "admin"), token("extra", "submit"));
    let two = Two::start(&[root.clone(), extra], &[root]).await;
    let nonces = format!("{}/v1/signers/{}/nonces", two.near.url(), two.signer_there().await);
    let (status, refused) = two.ask("extra", "POST", &nonces, None).await;
    assert_eq!((status, &refused["code"]), (409, &json!("not_owner")), "{refused}");
    assert_eq!(refused["owner_url"], two.far_url.as_str());
    assert!(two.near.whole_log().contains("did not accept a forwarded request"), "{}", two.near.whole_log());
    assert_eq!(two.ask("root", "POST", &nonces, None).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_with_different_secrets_serve_no_requests_for_each_other() {
    let entries = [token("root", "admin")];
    let other = "another-secret-of-the-second-instance";
    let two = Two::with_secrets((&entries, SECRET), (&entries, other)).await;
    let nonces = format!("{}/v1/signers/{}/nonces", two.near.url(), two.signer_there().await);
    let (status, refused) = two.ask("root", "POST", &nonces, None).await;
    assert_eq!((status, &refused["code"]), (409, &json!("not_owner")), "{refused}");
    assert_eq!(refused["owner_url"], two.far_url.as_str());
    assert!(two.near.whole_log().contains("cluster.secret"), "{}", two.near.whole_log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_cannot_be_reached_is_one_line_however_many_requests_are_for_it() {
    let entries = [token("root", "admin")];
    let mut two = Two::start(&entries, &entries).await;
    let client = patient().with_token("secret-of-root");
    let delayed = json!({ "payload": 1, "delay_ms": 3_600_000 });
    let jobs = format!("{}/v1/jobs", two.far.url());
    let job = client.request("POST", &jobs, None, Some(&delayed)).await.unwrap().body;
    // Nothing was forwarded yet, so the first instance has no connection there.
    two.relay.abort();
    let _ = (&mut two.relay).await;
    let cancel = format!("{}/v1/jobs/{}/cancel", two.near.url(), job["id"].as_str().unwrap());
    for _ in 0..100 {
        let (status, refused) = two.ask("root", "POST", &cancel, None).await;
        assert_eq!((status, &refused["owner_url"]), (409, &json!(two.far_url)), "{refused}");
    }
    let metrics = format!("{}/metrics", two.near.url());
    let shown = client.request("GET", &metrics, None, None).await.unwrap().text;
    assert!(shown.contains("fencepost_forward_total{result=\"unreachable\"} 100\n"), "{shown}");
    let told = || two.near.whole_log().matches("an owner could not be reached").count();
    until("it is in the log", async || told() > 0).await;
    assert_eq!(told(), 1, "{}", two.near.whole_log());
}
