//! TLS: instances, clients and nodes under a private authority, certificates that change, and what is refused.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use client::node::{Event, Times, Worker, WorkerOptions};
use client::wire::Json;
use client::wire::nonces::GrantRequest;
use client::{Client as Library, Retry, TlsOptions};
use serde_json::json;
use testkit::PATIENCE;
use testkit::authority::{Authority, Pair};
use testkit::fleet::Fleet;
use testkit::http::Client;
use testkit::instance::{Ended, Instance, Setup};
use testkit::process::Signal;
use testkit::proxy::Proxy;
use testkit::servers::{Database, Postgres};

use crate::{patient, until};

/// With the listener's certificate, and trusting this authority where other instances are asked.
fn with_tls(setup: Setup, authority: &Authority, pair: &Pair) -> Setup {
    let [certificate, key] = pair.texts();
    setup
        .env("FENCEPOST__SERVER__TLS_CERTIFICATE", certificate)
        .env("FENCEPOST__SERVER__TLS_KEY", key)
        .env("FENCEPOST__CLUSTER__CA_FILE", authority.file().to_str().unwrap())
}

async fn fleet(authority: &Authority, pair: &Pair, shape: impl Fn(Setup) -> Setup) -> Fleet {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let shape = |setup| shape(with_tls(setup, authority, pair));
    Fleet::on(database, "worker-queue", 2, shape).await.unwrap()
}

fn trusting(authority: &Authority, pair: Option<&Pair>) -> Client {
    Client::over(testkit::http::trusting(PATIENCE, &[&authority.file()], pair).unwrap())
}

/// Options of the client library.
fn options(authority: &Authority) -> TlsOptions {
    TlsOptions { ca_file: Some(authority.file()), pair: None }
}

/// A client command against this instance.
fn command(name: &'static str, words: &[&str], url: &str, authority: &Authority) -> Setup {
    let setup = words.iter().fold(Setup::command(name), |setup, word| setup.arg(word));
    setup.arg("--url").arg(url).env("FENCEPOST_CA", authority.file().to_str().unwrap())
}

async fn forwards(client: &Client, urls: &[String], result: &str) -> f64 {
    let mut sum = 0.0;
    for url in urls {
        let reply = client.request("GET", &format!("{url}/metrics"), None, None).await.unwrap();
        let name = format!("fencepost_forward_total{{result=\"{result}\"}} ");
        let lines = reply.text.lines().filter_map(|line| line.strip_prefix(&name)?.parse::<f64>().ok());
        sum += lines.sum::<f64>();
    }
    sum
}

/// Asks for nonces of many signers at every instance.
async fn grants_everywhere(client: &Client, urls: &[String]) {
    for number in 0..12 {
        for url in urls {
            let url = format!("{url}/v1/signers/signer-{number}/nonces");
            // While the second instance joins, signers move.
            until("the signer's owner grants", async || {
                let reply = client.request("POST", &url, None, None).await.unwrap();
                assert!(reply.status == 201 || reply.code() == "not_owner", "{}", reply.text);
                reply.status == 201
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_clients_and_nodes_meet_over_tls_under_a_private_authority() {
    let authority = Authority::new("ours").unwrap();
    let pair = authority.issue("server").unwrap();
    let fleet = fleet(&authority, &pair, |setup| setup).await;
    let urls = fleet.urls();
    assert!(urls.iter().all(|url| url.starts_with("https://127.0.0.1:")), "{urls:?}");
    let client = trusting(&authority, None);
    let cluster = client.get(&format!("{}/v1/cluster", urls[0])).await.unwrap();
    let advertised = cluster["instances"].as_array().unwrap();
    assert!(advertised.iter().all(|one| one["url"].as_str().unwrap().starts_with("https://")), "{cluster}");
    grants_everywhere(&client, urls).await;
    assert!(forwards(&client, urls, "answered").await > 0.0, "some went to another instance");
    // The library asks the owners directly.
    let library = Library::with_tls(urls, None, &options(&authority)).unwrap();
    library.grant("signer-0", &GrantRequest::default(), None).await.unwrap();
    // A node and a job by the command line.
    let node = command("node", &[], &urls[0], &authority).arg("--exec").arg("cat").start_command().unwrap();
    let submitted = command("submit", &["--wait", "{\"a\":1}"], &urls[0], &authority);
    let ended = submitted.run_to_end(PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(0), "{ended:?}\n{}", node.log());
    assert!(ended.stdout.contains(r#"{"a":1}"#), "{}", ended.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_forwarded_because_the_owner_has_another_scheme_counts_as_unreachable() {
    let authority = Authority::new("ours").unwrap();
    let pair = authority.issue("server").unwrap();
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let setup = || {
        let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
        setup.env("FENCEPOST__LEASE__INSTANCE_MS", "10000")
    };
    let over_tls = with_tls(setup(), &authority, &pair).start();
    let (plain, over_tls) = tokio::try_join!(setup().start(), over_tls).unwrap();
    let delayed = json!({"payload": 1, "delay_ms": 3_600_000});
    let jobs = format!("{}/v1/jobs", over_tls.url());
    let job = trusting(&authority, None).request("POST", &jobs, None, Some(&delayed)).await.unwrap().body;
    let cancel = format!("{}/v1/jobs/{}/cancel", plain.url(), job["id"].as_str().unwrap());
    let client = patient();
    let refused = client.request("POST", &cancel, None, None).await.unwrap();
    assert_eq!((refused.status, refused.code()), (409, "not_owner"), "{}", refused.text);
    assert_eq!(refused.body["owner_url"], over_tls.url(), "{}", refused.text);
    assert_eq!(forwards(&client, &[plain.url().to_owned()], "unreachable").await, 1.0);
}

fn refused(ended: &Ended, words: &[&str]) {
    assert!(matches!(ended.code, Some(code) if code != 0), "{ended:?}");
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not in: {}", ended.stderr);
    }
}

/// Connects a node of the library for a moment; what it fails with.
async fn node_fails_with(url: &str, tls: TlsOptions) -> String {
    let times = Times { patience: Some(Duration::from_millis(300)), ..Times::default() };
    let worker = Worker::new(WorkerOptions { tls, times, ..WorkerOptions::new([url], "n") }).unwrap();
    let handler = |_job| async { Ok::<_, client::node::Failure>(Json::of(&1).unwrap()) };
    let ended = worker.run(handler, std::future::pending()).await;
    ended.expect_err("nobody is trusted").to_string()
}

/// Asks once; what it fails with.
async fn library_fails_with(url: &str, tls: &TlsOptions) -> String {
    let once = Retry { attempts_max: 1, ..Retry::default() };
    let client = Library::with_tls([url], None, tls).unwrap().with_retry(once);
    client.health().await.expect_err("nobody is trusted").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_authority_is_refused_in_words() {
    let (authority, other) = (Authority::new("ours").unwrap(), Authority::new("another").unwrap());
    let pair = authority.issue("server").unwrap();
    let setup = with_tls(Setup::in_mode("worker-queue").unwrap(), &authority, &pair);
    let instance = setup.start().await.unwrap();
    let words = ["signed by no authority that is trusted here", "--ca (or FENCEPOST_CA)"];
    let listed = command("lease", &["list"], instance.url(), &other).run_to_end(PATIENCE).await.unwrap();
    refused(&listed, &words);
    assert!(!listed.stderr.contains("Is a daemon running"), "{}", listed.stderr);
    let node = command("node", &[], instance.url(), &other).arg("--exec").arg("cat").start_command().unwrap();
    until("the node's log says so", async || words.iter().all(|word| node.log().contains(word))).await;
    let said = node_fails_with(instance.url(), options(&other)).await;
    assert!(said.contains(words[0]), "{said}");
    // The name is checked too.
    let elsewhere = authority.issue_for("elsewhere.example").unwrap();
    let misnamed = with_tls(Setup::in_mode("worker-queue").unwrap(), &authority, &elsewhere);
    let misnamed = misnamed.start().await.unwrap();
    let named = command("lease", &["list"], misnamed.url(), &authority).run_to_end(PATIENCE).await.unwrap();
    refused(&named, &["the server's certificate is for another name"]);
    assert!(!named.stderr.contains("Is a daemon running"), "{}", named.stderr);
    // A file that is none is refused before anything is sent.
    let missing = Setup::command("lease").arg("list").arg("--url").arg(instance.url());
    let missing = missing.arg("--ca").arg("no/such/file.pem").run_to_end(PATIENCE).await.unwrap();
    refused(&missing, &["no/such/file.pem", "cannot be read"]);
    // Without TLS there is no answer, and the listener goes on.
    let plain = patient().request("GET", &instance.url().replace("https", "http"), None, None).await;
    assert!(plain.is_err(), "{plain:?}");
    trusting(&authority, None).get(&format!("{}/readyz", instance.url())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_demanded_where_an_authority_for_clients_is_named() {
    let (authority, other) = (Authority::new("ours").unwrap(), Authority::new("another").unwrap());
    let (server, own) = (authority.issue("server").unwrap(), authority.issue("client").unwrap());
    let demanding =
        |setup: Setup| setup.env("FENCEPOST__SERVER__TLS_CLIENT_CA", authority.file().to_str().unwrap());
    let fleet = fleet(&authority, &server, demanding).await;
    let urls = fleet.urls();
    let with_pair = |pair: &Pair| {
        let [certificate, key] = pair.texts();
        let listed = command("lease", &["list"], &urls[0], &authority);
        listed.arg("--cert").arg(certificate).arg("--cert-key").arg(key).run_to_end(PATIENCE)
    };
    // A client that is slow to write its request may find the connection closed before it reads why.
    let demands = "the server demands a client certificate";
    // Nothing of the request was read, although it was sent: with TLS 1.3 the server says no after that.
    until("a client is told that it needs a certificate", async || {
        let said = library_fails_with(&urls[0], &options(&authority)).await;
        said.starts_with("no connection to ") && said.contains(demands)
    })
    .await;
    until("a node is told that it needs a certificate", async || {
        node_fails_with(&urls[0], options(&authority)).await.contains(demands)
    })
    .await;
    let foreign = other.issue("client").unwrap();
    let pair = Some(client::tls::Pair { certificate: foreign.certificate, key: foreign.key });
    let with_foreign = TlsOptions { pair, ..options(&authority) };
    until("a client is told that its certificate is not accepted", async || {
        let said = library_fails_with(&urls[0], &with_foreign).await;
        said.contains("the server does not accept the client certificate")
    })
    .await;
    let listed = with_pair(&own).await.unwrap();
    assert_eq!(listed.code, Some(0), "{listed:?}");
    // The instances show each other their own.
    let client = trusting(&authority, Some(&own));
    grants_everywhere(&client, urls).await;
    assert!(forwards(&client, urls, "answered").await > 0.0);
}

/// An instance, its certificate, and clients at work that trust every authority of the test.
struct Reloaded {
    instance: Instance,
    pair: Pair,
    served: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    work: Vec<tokio::task::JoinHandle<()>>,
}

impl Reloaded {
    async fn start(authority: &Authority, trusted: &[&Path]) -> Self {
        let pair = authority.issue("server").unwrap();
        let setup = with_tls(Setup::in_mode("worker-queue").unwrap(), authority, &pair);
        let instance = setup.start().await.unwrap();
        let (served, lost) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut it = Self { instance, pair, served, lost, stop: Arc::default(), work: Vec::new() };
        for _ in 0..4 {
            let client = Client::over(testkit::http::trusting(PATIENCE, trusted, None).unwrap());
            let url = format!("{}/v1/signers/s/nonces", it.instance.url());
            let (served, stop) = (Arc::clone(&it.served), Arc::clone(&it.stop));
            it.work.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.request("POST", &url, None, None).await.unwrap();
                    assert_eq!(reply.status, 201, "{}", reply.text);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        let (connected, is_connected) = tokio::sync::oneshot::channel();
        let (connected, lost) = (parking_lot::Mutex::new(Some(connected)), Arc::clone(&it.lost));
        let options =
            WorkerOptions { tls: options(authority), ..WorkerOptions::new([it.instance.url()], "n") };
        let worker = Worker::new(options).unwrap().with_observer(move |event| match event {
            Event::Connected { .. } => {
                if let Some(connected) = connected.lock().take() {
                    connected.send(()).unwrap();
                }
            }
            Event::Lost { .. } => {
                lost.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        });
        let stop = Arc::clone(&it.stop);
        let stopped = async move {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let handler =
            |job: client::node::Job| async move { Ok::<_, client::node::Failure>(job.payload.clone()) };
        it.work.push(tokio::spawn(async move {
            worker.run(handler, stopped).await.unwrap();
        }));
        is_connected.await.unwrap();
        it
    }

    /// Waits until as many more requests were answered.
    async fn served(&self, more: usize) {
        let enough = self.served.load(Ordering::Relaxed) + more;
        until("requests are answered", async || self.served.load(Ordering::Relaxed) >= enough).await;
    }

    /// Whether a new connection is served under this authority alone.
    async fn is_of(&self, authority: &Authority) -> bool {
        // A client of its own: connections that are open show nothing new.
        let url = format!("{}/healthz", self.instance.url());
        trusting(authority, None).request("GET", &url, None, None).await.is_ok()
    }

    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for work in self.work {
            work.await.unwrap();
        }
        assert_eq!(self.lost.load(Ordering::Relaxed), 0, "the node's socket stayed open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_change_under_load_and_no_connection_is_lost() {
    let authorities = ["first", "second", "third"].map(|name| Authority::new(name).unwrap());
    let [first, second, third] = &authorities;
    let files = authorities.each_ref().map(Authority::file);
    let trusted: Vec<&Path> = files.iter().map(|file| file.as_path()).collect();
    let daemon = Reloaded::start(first, &trusted).await;
    assert!(daemon.is_of(first).await && !daemon.is_of(second).await);
    daemon.served(20).await;
    // Found by looking at the files.
    second.issue_into(&daemon.pair).unwrap();
    until("the second certificate is shown", async || daemon.is_of(second).await).await;
    assert!(!daemon.is_of(first).await, "new connections get the new one alone");
    daemon.served(20).await;
    // A pair that cannot be used changes nothing, also where it is asked for.
    let key = std::fs::read_to_string(&daemon.pair.key).unwrap();
    std::fs::write(&daemon.pair.key, "no key").unwrap();
    daemon.instance.process().signal(Signal::Hangup).unwrap();
    until("the refusal is logged", async || {
        let log = daemon.instance.whole_log();
        log.contains("the certificates cannot be reloaded") && log.contains("server.tls_key")
    })
    .await;
    assert!(daemon.is_of(second).await);
    let metrics = async |authority: &Authority| {
        let url = format!("{}/metrics", daemon.instance.url());
        trusting(authority, None).request("GET", &url, None, None).await.unwrap().text
    };
    let refused = r#"fencepost_file_refused{of="listener"}"#;
    let is_refused = async |authority: &Authority| metrics(authority).await.contains(&format!("{refused} 1"));
    assert!(is_refused(second).await, "{refused} is not 1");
    let metrics_then = metrics(second).await;
    let counted = r#"fencepost_tls_reload_total{of="listener",result="refused"}"#;
    assert!(metrics_then.contains(counted), "{counted} is not in: {metrics_then}");
    std::fs::write(&daemon.pair.key, key).unwrap();
    // One that has expired changes nothing either.
    second.issue_expired_into(&daemon.pair).unwrap();
    until("the expired one is logged", async || {
        daemon.instance.whole_log().contains("expired at 2020-01-31T00:00:00Z")
    })
    .await;
    assert!(daemon.is_of(second).await);
    let in_use = r#"fencepost_tls_certificate_expires_seconds{of="listener"} "#;
    let expires = metrics_then.lines().find_map(|line| line.strip_prefix(in_use)?.parse::<f64>().ok());
    assert!(expires.is_some_and(|at| at > 4e9), "that of the certificate in use: {expires:?}");
    // Asked for by a signal.
    third.issue_into(&daemon.pair).unwrap();
    daemon.instance.process().signal(Signal::Hangup).unwrap();
    until("the third certificate is shown", async || daemon.is_of(third).await).await;
    until("nothing is refused", async || !is_refused(third).await).await;
    daemon.served(20).await;
    daemon.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_and_a_node_follow_their_files_when_all_certificates_are_replaced() {
    let (first, second) = (Authority::new("first").unwrap(), Authority::new("second").unwrap());
    let (server, own) = (first.issue("server").unwrap(), first.issue("client").unwrap());
    let setup = with_tls(Setup::in_mode("worker-queue").unwrap(), &first, &server);
    let setup = setup.env("FENCEPOST__SERVER__TLS_CLIENT_CA", first.file().to_str().unwrap());
    let mut instance = setup.start().await.unwrap();
    let pair = client::tls::Pair { certificate: own.certificate.clone(), key: own.key.clone() };
    let tls = TlsOptions { ca_file: Some(first.file()), pair: Some(pair) };
    let library = Library::with_tls([instance.url()], None, &tls).unwrap();
    library.health().await.unwrap();
    let (connected, mut connections) = tokio::sync::mpsc::unbounded_channel();
    let worker = Worker::new(WorkerOptions { tls, ..WorkerOptions::new([instance.url()], "n") }).unwrap();
    let worker = worker.with_observer(move |event| {
        if matches!(event, Event::Connected { .. }) {
            connected.send(()).unwrap();
        }
    });
    let handler = |_job| async { Ok::<_, client::node::Failure>(Json::of(&1).unwrap()) };
    let node = tokio::spawn(async move { worker.run(handler, std::future::pending()).await });
    tokio::time::timeout(PATIENCE, connections.recv()).await.unwrap().unwrap();
    // The certificates of all three, and the authority that they trust.
    std::fs::copy(second.file(), first.file()).unwrap();
    second.issue_into(&server).unwrap();
    second.issue_into(&own).unwrap();
    instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    instance.start().await.unwrap();
    tokio::time::timeout(PATIENCE, connections.recv()).await.expect("the node is back").unwrap();
    library.health().await.unwrap();
    node.abort();
}

/// Also where the server would go on with a session that it has had with the node.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_connects_again_trusts_only_whom_its_file_names_by_then() {
    let (first, second) = (Authority::new("first").unwrap(), Authority::new("second").unwrap());
    let server = first.issue("server").unwrap();
    let setup = with_tls(Setup::in_mode("worker-queue").unwrap(), &first, &server);
    let instance = setup.start().await.unwrap();
    let way = Proxy::start(instance.url().strip_prefix("https://").unwrap().parse().unwrap()).await.unwrap();
    let url = format!("https://{}", way.address());
    let (say, mut said) = tokio::sync::mpsc::unbounded_channel();
    let times = Times { pause_max: Duration::ZERO, ..Times::default() };
    let tls = options(&first);
    let worker =
        Worker::new(WorkerOptions { tls, times, ..WorkerOptions::new([url.as_str()], "n") }).unwrap();
    let worker = worker.with_observer(move |event| {
        let lost = match event {
            Event::Connected { .. } => None,
            Event::Lost { reason, .. } => Some(reason),
            _ => return,
        };
        // The test may be over.
        let _ = say.send(lost);
    });
    let handler = |_job| async { Ok::<_, client::node::Failure>(Json::of(&1).unwrap()) };
    let node = tokio::spawn(async move { worker.run(handler, std::future::pending()).await });
    let mut next = async || tokio::time::timeout(PATIENCE, said.recv()).await.unwrap().unwrap();
    assert_eq!(next().await, None, "it is connected");
    std::fs::copy(second.file(), first.file()).unwrap();
    way.cut().await.unwrap();
    way.heal().await.unwrap();
    while !next().await.expect("it trusts the server no more").contains("certificate") {}
    node.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_warns_once_of_a_file_that_cannot_be_used_and_goes_on_with_what_it_read_before() {
    let authority = Authority::new("ours").unwrap();
    let server = authority.issue("server").unwrap();
    let instance = with_tls(Setup::in_mode("worker-queue").unwrap(), &authority, &server);
    let instance = instance.start().await.unwrap();
    let way = Proxy::start(instance.url().strip_prefix("https://").unwrap().parse().unwrap()).await.unwrap();
    let url = format!("https://{}", way.address());
    let node = command("node", &[], &url, &authority).arg("--exec").arg("cat").start_command().unwrap();
    let connects = async |times: usize| {
        until("the node is connected", async || node.log().matches("\"connected\"").count() >= times).await;
    };
    connects(1).await;
    std::fs::write(authority.file(), "no certificate").unwrap();
    for times in 2..=3 {
        way.cut().await.unwrap();
        way.heal().await.unwrap();
        connects(times).await;
    }
    let log = node.log();
    let warnings: Vec<_> =
        log.lines().filter(|line| line.contains("the certificates cannot be reloaded")).collect();
    assert!(matches!(warnings[..], [one] if one.contains("authority.pem")), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_authorities_alone_is_no_reload_of_the_listener() {
    let authority = Authority::new("ours").unwrap();
    let pair = authority.issue("server").unwrap();
    let setup = with_tls(Setup::in_mode("worker-queue").unwrap(), &authority, &pair);
    let instance = setup.start().await.unwrap();
    let text = std::fs::read_to_string(authority.file()).unwrap();
    std::fs::write(authority.file(), format!("{text}\n")).unwrap();
    let reloads = |of: &str| {
        let log = instance.whole_log();
        let reloads = log.lines().filter(|line| line.contains("the certificates are reloaded"));
        reloads.filter(|line| line.contains(of)).count()
    };
    until("the authorities are read again", async || reloads("peers") > 0).await;
    assert_eq!(reloads("listener"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_tells_of_a_certificate_that_is_gone_and_of_its_return() {
    let authority = Authority::new("ours").unwrap();
    let pair = authority.issue("server").unwrap();
    let setup = with_tls(Setup::in_mode("worker-queue").unwrap(), &authority, &pair);
    let instance = setup.start().await.unwrap();
    let text = std::fs::read(&pair.certificate).unwrap();
    std::fs::remove_file(&pair.certificate).unwrap();
    let [certificate, _] = pair.texts();
    let tells = |words: &str| {
        let log = instance.whole_log();
        ["listener", "peers"]
            .iter()
            .all(|of| log.lines().any(|line| line.contains(words) && line.contains(of)))
    };
    until("the loss is logged", async || {
        tells("a file of certificates is gone") && instance.whole_log().contains(certificate)
    })
    .await;
    std::fs::write(&pair.certificate, text).unwrap();
    until("the return is logged", async || tells("the files of certificates are back")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_of_the_configuration_warns_of_authorities_without_use_and_of_a_certificate_of_later() {
    let authority = Authority::new("ours").unwrap();
    let pair = authority.issue("server").unwrap();
    let checked = |mode: &str| {
        let url =
            format!("postgres://u@127.0.0.1:1/d?sslmode={mode}&sslrootcert={}", authority.file().display());
        let setup = with_tls(Setup::command("check-config"), &authority, &pair);
        setup.env("FENCEPOST_DATABASE_URL", &url).run_to_end(PATIENCE)
    };
    let ended = checked("verify-full").await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        !["is not read", "valid from"].iter().any(|words| ended.stderr.contains(words)),
        "{}",
        ended.stderr
    );
    authority.issue_early_into(&pair).unwrap();
    let ended = checked("require").await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for words in ["ledger.url: sslrootcert is not read", "valid from 4000-01-01T00:00:00Z on"] {
        assert_eq!(ended.stderr.matches(words).count(), 1, "{words} is not in: {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_used_stop_the_start_and_the_check_of_the_configuration_with_78() {
    let authority = Authority::new("ours").unwrap();
    let (pair, other) = (authority.issue("server").unwrap(), authority.issue("other").unwrap());
    let [certificate, key] = pair.texts();
    let [_, other_key] = other.texts();
    let expired = authority.issue("expired").unwrap();
    authority.issue_expired_into(&expired).unwrap();
    let [expired_certificate, expired_key] = expired.texts();
    let elsewhere = authority.issue_for("elsewhere.example").unwrap();
    let [elsewhere_certificate, elsewhere_key] = elsewhere.texts();
    let own =
        |key| vec![("FENCEPOST__SERVER__TLS_CERTIFICATE", certificate), ("FENCEPOST__SERVER__TLS_KEY", key)];
    let and = |more: &[_]| [own(key).as_slice(), more].concat();
    // Nobody listens there: the files are read before anything is connected to.
    let postgres = "postgres://u@127.0.0.1:1/d?sslmode=verify-full";
    let missing_authority = format!("{postgres}&sslrootcert=missing.pem");
    let key_for_authority = format!("{postgres}&sslrootcert={key}");
    let certificate_for_key = format!("{postgres}&sslcert={certificate}&sslkey={certificate}");
    let certificate_alone = format!("{postgres}&sslcert={certificate}");
    for (variables, words) in [
        (own("missing.key"), ["server.tls_key", "missing.key", "cannot be read"]),
        (own(other_key), ["server.tls_key", other_key, "not the key of the certificate"]),
        (own(certificate), ["server.tls_key", certificate, "no private key"]),
        (and(&[("FENCEPOST__SERVER__TLS_CLIENT_CA", key)]), ["server.tls_client_ca", key, "no certificate"]),
        (and(&[("FENCEPOST__CLUSTER__CA_FILE", "missing.pem")]), ["cluster.ca_file", "missing.pem", "read"]),
        (
            and(&[("FENCEPOST__CLUSTER__CERTIFICATE", certificate), ("FENCEPOST__CLUSTER__KEY", other_key)]),
            ["cluster.key", other_key, "not the key of the certificate"],
        ),
        (
            vec![
                ("FENCEPOST__SERVER__TLS_CERTIFICATE", expired_certificate),
                ("FENCEPOST__SERVER__TLS_KEY", expired_key),
            ],
            ["server.tls_certificate", expired_certificate, "expired at 2020-01-31T00:00:00Z"],
        ),
        (
            and(&[
                ("FENCEPOST__CLUSTER__CERTIFICATE", expired_certificate),
                ("FENCEPOST__CLUSTER__KEY", expired_key),
            ]),
            ["cluster.certificate", expired_certificate, "expired at 2020-01-31T00:00:00Z"],
        ),
        (
            vec![
                ("FENCEPOST__SERVER__TLS_CERTIFICATE", elsewhere_certificate),
                ("FENCEPOST__SERVER__TLS_KEY", elsewhere_key),
                ("FENCEPOST__SERVER__ADVERTISE", "https://localhost:7070"),
            ],
            ["server.tls_certificate", elsewhere_certificate, "not for localhost"],
        ),
        (
            vec![("FENCEPOST_DATABASE_URL", missing_authority.as_str())],
            ["ledger.url: sslrootcert", "missing.pem", "cannot be read"],
        ),
        (
            vec![("FENCEPOST_DATABASE_URL", key_for_authority.as_str())],
            ["ledger.url: sslrootcert", key, "no certificate in PEM"],
        ),
        (
            vec![("FENCEPOST_DATABASE_URL", certificate_for_key.as_str())],
            ["ledger.url: sslkey", certificate, "no private key in PEM"],
        ),
        (
            vec![("FENCEPOST_DATABASE_URL", certificate_alone.as_str())],
            ["ledger.url: sslcert", certificate, "together"],
        ),
        (
            vec![
                ("FENCEPOST_REDIS_URL", "rediss://127.0.0.1:1/"),
                ("FENCEPOST__BUS__TLS_CA_FILE", "missing.pem"),
            ],
            ["bus.tls_ca_file", "missing.pem", "cannot be read"],
        ),
    ] {
        for setup in [Setup::in_mode("basic").unwrap(), Setup::command("check-config")] {
            let setup = variables.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
            let ended = setup.run_to_end(PATIENCE).await.unwrap();
            assert_eq!(ended.code, Some(78), "{}", ended.stderr);
            refused(&ended, &words);
        }
    }
    let checked = with_tls(Setup::command("check-config"), &authority, &pair);
    let ended = checked.run_to_end(PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_in_the_environment_and_a_key_in_a_file_are_a_pair_for_postgresql() {
    let authority = Authority::new("ours").unwrap();
    let pair = authority.issue("server").unwrap();
    let [certificate, key] = pair.texts();
    let texts = [certificate, key].map(|file| std::fs::read_to_string(file).unwrap());
    let [certificate_text, key_text] = texts.each_ref().map(String::as_str);
    let checked = |mode: &str, parameters: &str, variable: Option<(&str, &str)>| {
        let url = format!("postgres://u@127.0.0.1:1/d?sslmode={mode}{parameters}");
        let setup = Setup::command("check-config").env("FENCEPOST_DATABASE_URL", &url);
        let setup = variable.into_iter().fold(setup, |setup, (name, value)| setup.env(name, value));
        setup.run_to_end(PATIENCE)
    };
    let (of_certificate, of_key) = (format!("&sslcert={certificate}"), format!("&sslkey={key}"));
    for (mode, parameters, variable) in [
        ("require", of_key.as_str(), Some(("PGSSLCERT", certificate_text))),
        ("verify-full", of_certificate.as_str(), Some(("PGSSLKEY", key_text))),
        // The driver reads none of them where the server offers no encryption.
        ("prefer", "&sslcert=missing.crt&sslkey=missing.key", None),
        ("prefer", "&sslcert=missing.crt", None),
    ] {
        let ended = checked(mode, parameters, variable).await.unwrap();
        assert_eq!(ended.code, Some(0), "{mode} {parameters}: {}", ended.stderr);
    }
    for (parameters, variable, words) in [
        (
            "&sslkey=missing.key",
            ("PGSSLCERT", certificate_text),
            ["ledger.url: sslkey", "missing.key", "cannot be read"],
        ),
        (
            "&sslcert=missing.crt",
            ("PGSSLKEY", key_text),
            ["ledger.url: sslcert", "missing.crt", "cannot be read"],
        ),
        ("", ("PGSSLCERT", certificate_text), ["ledger.url: PGSSLCERT: ", "sslcert and sslkey", "together"]),
    ] {
        let ended = checked("require", parameters, Some(variable)).await.unwrap();
        assert_eq!(ended.code, Some(78), "{}", ended.stderr);
        refused(&ended, &words);
        assert!(!ended.stderr.contains("-----BEGIN"), "{}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_is_verified_by_its_certificate() {
    let (authority, other) = (Authority::new("ours").unwrap(), Authority::new("another").unwrap());
    let pair = authority.issue("server").unwrap();
    let start = || Arc::new(Postgres::start_with_tls(&pair).unwrap());
    let server = tokio::task::block_in_place(start);
    let database = server.database().unwrap();
    let url = |authority: &Authority| {
        format!("{}?sslmode=verify-full&sslrootcert={}", database.url(), authority.file().display())
    };
    let setup = || Setup::in_mode("basic").unwrap().env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "20000");
    let instance = setup().database(&url(&authority)).start().await.unwrap();
    let granted = format!("{}/v1/signers/s/nonces", instance.url());
    let granted = patient().request("POST", &granted, None, None).await.unwrap();
    assert_eq!(granted.status, 201, "{}", granted.text);
    let rows = database
        .query("select count(*) > 0 from pg_stat_ssl s join pg_stat_activity a using (pid) where s.ssl and a.application_name <> 'psql'")
        .unwrap();
    assert_eq!(rows, [["t"]], "its connections are encrypted");
    let refused_setup = setup().database(&url(&other)).env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "3000");
    let ended = refused_setup.run_to_end(PATIENCE).await.unwrap();
    refused(&ended, &["certificate"]);
    assert!(!ended.stdout.contains("ready"));
}

/// `openssl req -x509` makes such ones, and PostgreSQL's own clients take them.
#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_that_shows_an_authoritys_certificate_is_refused_with_what_it_is_to_show() {
    let authority = Authority::new("ours").unwrap();
    let pair = authority.issue_authority("server").unwrap();
    let start = || Arc::new(Postgres::start_with_tls(&pair).unwrap());
    let server = tokio::task::block_in_place(start);
    let file = authority.file();
    let url = format!("{}?sslmode=verify-full&sslrootcert={}", server.url("postgres"), file.display());
    let setup = Setup::basic().unwrap().env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "3000").database(&url);
    let ended = setup.run_to_end(PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(69), "{}", ended.stderr);
    refused(&ended, &["CA:TRUE", "CA:FALSE", "ledger.url"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_is_reached_from_elsewhere_needs_encryption_or_the_word_insecure() {
    let token = r#"[{"name":"t","token":"s3cret","scopes":["admin"]}]"#;
    let check = |variables: &[(&str, &str)]| {
        let setup = Setup::command("check-config").env("FENCEPOST__AUTH__TOKENS", token);
        variables.iter().fold(setup, |setup, (name, value)| setup.env(name, value)).run_to_end(PATIENCE)
    };
    for (name, value, insecure) in [
        ("FENCEPOST_LISTEN", "0.0.0.0:7070", "server.insecure"),
        ("FENCEPOST_DATABASE_URL", "postgres://u:s3cret@db/f", "ledger.insecure"),
        ("FENCEPOST_REDIS_URL", "redis://:s3cret@redis", "bus.insecure"),
    ] {
        let ended = check(&[(name, value)]).await.unwrap();
        assert_eq!(ended.code, Some(78), "{}", ended.stderr);
        refused(&ended, &[insecure, name]);
        let variable = format!("FENCEPOST__{}", insecure.to_ascii_uppercase().replace('.', "__"));
        let ended = check(&[(name, value), (&variable, "true")]).await.unwrap();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(!ended.stdout.contains("s3cret") && !ended.stderr.contains("s3cret"), "{ended:?}");
    }
}
