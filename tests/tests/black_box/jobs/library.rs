//! Conversations through the client library, whose sockets go on when instances do not.

use std::collections::HashSet;

use client::Client;
use client::sessions::{Happening, SessionSocket};
use client::wire::Json;
use client::wire::jobs::{JobRequest, Outcome};
use client::wire::sessions::{JobResult, Ordering, SessionRequest};
use serde_json::json;
use testkit::process::Signal;
use tokio::task::JoinHandle;

use super::rig::{PATIENCE, Rig};

/// What a client was told.
#[derive(Default)]
struct Seen {
    /// Where it is connected.
    url: Option<String>,
    connections: usize,
    accepted: Vec<String>,
    results: Vec<JobResult>,
}

impl Seen {
    /// Reads on until there are so many results.
    async fn until(&mut self, socket: &mut SessionSocket, results: usize) {
        while self.results.len() < results {
            let next = tokio::time::timeout(PATIENCE, socket.next()).await.expect("something happens");
            match next.unwrap() {
                Some(Happening::Connected { url }) => {
                    self.url = Some(url);
                    self.connections += 1;
                }
                Some(Happening::Lost { .. }) => self.url = None,
                Some(Happening::Accepted(taken)) => self.accepted.push(taken.client_ref),
                Some(Happening::Progress(_)) => {}
                Some(Happening::Result(result)) => {
                    let client_ref = result.client_ref.as_ref().unwrap();
                    assert!(self.accepted.contains(client_ref), "a result before its accepted: {result:?}");
                    self.results.push(result);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// The instance that the client is connected to.
    fn at(&self, rig: &Rig) -> usize {
        let url = self.url.as_ref().expect("it is connected");
        rig.urls.iter().position(|known| known == url).unwrap()
    }
}

fn job(n: usize) -> JobRequest {
    let payload = Json::of(&json!({ "echo": n })).unwrap();
    JobRequest { max_attempts: Some(20), ..JobRequest::new(payload) }
}

/// Sends so many jobs while the test reads.
fn sending(socket: &SessionSocket, jobs: usize) -> JoinHandle<()> {
    let sender = socket.sender();
    tokio::spawn(async move {
        for n in 0..jobs {
            sender.send(&format!("c{n}"), job(n)).await.unwrap();
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_sees_every_result_once_and_in_order_though_its_instance_is_killed_and_the_next_one_stopped()
{
    const JOBS: usize = 120;
    let rig = Rig::mortal(3).await;
    let node = rig.node(&[0, 1, 2], "n", |options| options.capacity = 4).await;
    node.runs.take(std::time::Duration::from_millis(5));
    let client = Client::new(&rig.urls, None).unwrap();
    let opened = client.sessions().open(&SessionRequest::default(), None).await.unwrap();
    let mut socket = client.sessions().connect(&opened.id, 0).await.unwrap();
    let sending = sending(&socket, JOBS);
    let mut seen = Seen::default();
    for (results, signal) in [(30, Signal::Kill), (70, Signal::Terminate)] {
        seen.until(&mut socket, results).await;
        rig.end(seen.at(&rig), signal).await;
    }
    seen.until(&mut socket, JOBS).await;
    sending.await.unwrap();
    assert!(seen.connections >= 3, "{} connections", seen.connections);
    let names: Vec<_> = (0..JOBS).map(|n| format!("c{n}")).collect();
    assert_eq!(seen.accepted, names);
    for (n, result) in seen.results.iter().enumerate() {
        assert_eq!((result.client_ref.as_ref(), result.outcome), (Some(&names[n]), Outcome::Succeeded));
        assert_eq!(result.result.as_ref().map(Json::as_str), Some(n.to_string().as_str()));
    }
    assert!(seen.results.is_sorted_by_key(|result| result.seq));
    let remains = socket.close().await;
    assert_eq!(remains.after_seq, seen.results.last().unwrap().seq);
    assert!(remains.unaccepted.is_empty(), "{remains:?}");
    // Another socket goes on there, to the session's end.
    let mut socket = client.sessions().connect(&opened.id, remains.after_seq).await.unwrap();
    socket.send("last", job(JOBS)).await.unwrap();
    seen.until(&mut socket, JOBS + 1).await;
    client.sessions().close(&opened.id).await.unwrap();
    assert_eq!(socket.next().await.unwrap(), None);
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_order_every_result_is_seen_once_though_the_clients_instance_is_killed() {
    const JOBS: usize = 300;
    let rig = Rig::mortal(3).await;
    let node = rig.node(&[0, 1, 2], "n", |options| options.capacity = 8).await;
    node.runs.take(std::time::Duration::from_millis(20));
    let client = Client::new(&rig.urls, None).unwrap();
    let asked = SessionRequest { ordering: Some(Ordering::Free), ..SessionRequest::default() };
    let opened = client.sessions().open(&asked, None).await.unwrap();
    let mut socket = client.sessions().connect(&opened.id, 0).await.unwrap();
    let sending = sending(&socket, JOBS);
    let mut seen = Seen::default();
    seen.until(&mut socket, 50).await;
    rig.end(seen.at(&rig), Signal::Kill).await;
    seen.until(&mut socket, JOBS).await;
    sending.await.unwrap();
    let places: HashSet<_> = seen.results.iter().map(|result| result.seq).collect();
    let names: HashSet<_> = seen.results.iter().map(|result| result.client_ref.clone()).collect();
    assert_eq!((places.len(), names.len()), (JOBS, JOBS));
    assert_eq!(seen.accepted.len(), JOBS);
    assert!(seen.connections >= 2, "{} connections", seen.connections);
    // What was sent again has left no number without a job: nothing would be received again.
    let remains = socket.close().await;
    assert_eq!((remains.after_seq, remains.unaccepted), (JOBS as u64, Vec::new()));
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_never_was_is_told_at_once() {
    let rig = Rig::alone().await;
    let client = Client::new(&rig.urls, None).unwrap();
    let error = client.sessions().connect("nobody", 0).await.unwrap_err();
    assert_eq!(error.problem().map(|problem| problem.code.as_str()), Some("not_found"));
}
