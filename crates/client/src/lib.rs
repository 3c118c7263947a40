//! The Rust client of Fencepost's HTTP API, and of its worker socket.
//!
//! What lives here: one [`Client`] for one or several base URLs, a method per call of `/v1`, but for `once` of a
//! job's retry and `digest` of the events, which it does not send ([`Client::jobs`] has those about jobs,
//! [`Client::sessions`] those about sessions, [`Client::plans`], [`Client::tasks`] and [`Client::tenants`] those
//! about plans, [`Client::nodes`] those about nodes and pools, [`Client::ids`] those about ids), a
//! [`sessions::SessionSocket`] that survives lost connections, a [`node::Worker`] that runs jobs, errors that carry
//! the daemon's own [`wire::Problem`], and retries that are bounded and harmless. What must never: a shape of a
//! request or an answer (those are in `wire`), or a type of the daemon's own crates.
//!
//! ```no_run
//! # use std::time::Instant;
//! # enum Sent { Mined(String), NotAtAll, Perhaps }
//! # async fn send(_order: &str, _nonce: u64, _before: Instant) -> Sent { Sent::Perhaps }
//! use std::time::Duration;
//!
//! use client::Client;
//! use client::wire::nonces::{
//!     GrantRequest, OnExpiry, Outcome, PolicyRequest, Settlement, SettlementResult,
//! };
//!
//! const SIGNER: &str = "eip155:1:0xab";
//!
//! /// Once for each signer: holds that last until a transaction is final, and nonces that stay out of use after them.
//! async fn prepare(fencepost: &Client) -> client::Result<()> {
//!     let policy = PolicyRequest {
//!         on_expiry: Some(OnExpiry::Quarantine),
//!         hold_ms: Some(3_600_000),
//!         ..PolicyRequest::default()
//!     };
//!     fencepost.set_policy(SIGNER, &policy).await.map(drop)
//! }
//!
//! /// Pays an order, again where it was left.
//! async fn pay(fencepost: &Client, order: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     // … an order that has a stored nonce goes on with that one, below: after 24 h its key would get another …
//!     let granted = loop {
//!         // Under its key the order gets the same nonce, also when the answer, this future or this process was lost.
//!         match fencepost.grant(SIGNER, &GrantRequest::default(), Some(order)).await {
//!             Ok(granted) => break granted,
//!             // The call has tried for 30 s. Its nonce may be granted, so the key stays.
//!             Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_secs(5)).await,
//!             // With `stale_hold` the order had a nonce: `granted_before` of the problem has it, and its hold. Look what
//!             // became of that before you take another key.
//!             Err(error) => return Err(error.into()),
//!         }
//!     };
//!     let grant = &granted.answer.grants[0];
//!     // … store `grant.nonce` and `grant.hold` with the order, sign, and store what was signed …
//!     let (outcome, tx_hash) = match send(order, grant.nonce, granted.usable_until(grant)).await {
//!         // Mined for good: that may take until long after this process.
//!         Sent::Mined(tx_hash) => (Outcome::Consumed, Some(tx_hash)),
//!         Sent::NotAtAll => (Outcome::NeverSent, None),
//!         // The chain's node did not answer, for example. Its hold can still say what became of it.
//!         Sent::Perhaps => (Outcome::Unknown, None),
//!     };
//!     let settlement = Settlement { nonce: grant.nonce, hold: grant.hold.clone(), outcome, tx_hash };
//!     // After any error, make the same call again: it is harmless, also much later.
//!     for result in fencepost.settle(SIGNER, vec![settlement]).await? {
//!         if let SettlementResult::Refused { code, detail, .. } = result {
//!             return Err(format!("{code}: {detail}").into());
//!         }
//!     }
//!     Ok(())
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let fencepost = Client::new(["http://127.0.0.1:7070", "http://127.0.0.1:7071"], None)?;
//! prepare(&fencepost).await?;
//! pay(&fencepost, "order-4711").await?;
//! # Ok(())
//! # }
//! ```
//!
//! There are further examples of a [worker](node), a [session](sessions), a [plan](Plans) and of [ids](Ids).
//!
//! **Retries.** Every call of this API may be repeated without harm: a grant goes out under an idempotency key (the
//! library makes one where the caller gives none), a settlement under its hold. So the library tries again after a
//! retryable refusal, after a connection that failed, and after an answer that was lost, within the bounds of
//! [`Retry`]. Where the answer to a change was lost and no later attempt succeeded, the call ends with
//! [`Error::Lost`], whatever the last attempt ended with; a caller that repeats a call has a [`Doubt`] for the same.
//! A key that the library made is forgotten with the call: after [`Error::Lost`] of a grant, its nonces may be held
//! without a caller, until their holds expire, and a job that is submitted again may be there twice. A caller that
//! must survive its own crashes passes keys of its own.
//!
//! **Dropping a call.** The future of any call may be dropped, as by a time-out or a `select!`: then nothing more is
//! sent. As after [`Error::Lost`], what was asked may be done, or be done a moment later. So a caller that drops
//! calls passes keys, too. A deadline of its own ends a call in order: `client.clone().with_retry(…)` has a
//! [`Retry::total_max`], and tells in the end whether anything may be done. What waits for events, sends jobs or ends
//! a connection says itself what a drop of it does.
//!
//! **Routes.** The library learns from the answers where the instances are, and asks the owner of a signer directly.
//! If that fails, it asks the URLs that it was given; any instance forwards a request to its owner. An address that
//! fails is avoided, for longer each time. If an instance does not answer for a second (after the time for which it
//! was asked to wait), the library asks another one whether it is still in the cluster; if it is not, the request is
//! repeated elsewhere. For that it must know the instances: a client's very first call waits for a paused one for
//! [`Retry::attempt_max`], and so does each call at a URL that no instance advertises, such as a proxy's. The library reads
//! `GET /v1/cluster` for it, in the background, whenever an answer names a change; a client of one URL only after calls
//! about signers. A token that may not (`node` alone) is refused that once for each change, and the client learns nothing.
//!
//! **URLs.** A client begins with one of its URLs by chance, so that the processes of a fleet do not all load the same
//! instance; with [`Client::in_order`] it begins with the first. Calls go there until that fails, then to the next one,
//! and stay there; only grants and settlements go to their signer's owner. Workers and sessions' sockets begin with
//! any of the URLs, by chance. The names of hosts are looked up for each new connection. No proxy is used, whatever the
//! environment says, and no redirect is followed.
//!
//! **Limits.** As many calls may be under way as their callers make, each with a connection of its own. A daemon
//! without room answers `overloaded`, and the calls wait and try again: so bound their number. A session's socket
//! bounds the jobs that it has sent ([`sessions::JobSender::send`]), and a worker its attempts
//! ([`node::WorkerOptions::capacity`]).
//!
//! **Upgrades of the daemon** need no restart of its clients. While instances are replaced one by one, calls go on at
//! the others, and workers and sockets connect there. Fields of an answer that this version does not know are passed
//! over; a word reads as `Unrecognised`, and of a code [`wire::Problem::known_code`] is `None`. A daemon refuses
//! fields of requests that it does not know (`invalid`): use what a release has added when all instances run it.
//!
//! **In a project.** The crate is on no registry. It needs Rust 1.94 and a tokio runtime with time and I/O, and has no
//! features. Name it as you like:
//!
//! ```toml
//! fencepost = { package = "client", git = "https://…" }
//! ```
//!
//! A [`Client`] may be shared and cloned; clones share connections and what is known of the cluster. Calls are `Send`.
//! [`Peers`], [`connections`] and the functions of [`tls`] are the daemon's own tools.
//!
//! **TLS.** `https://` works with rustls (ring) and the system's certificates, or with those of a file, and with a
//! certificate of the client's own where the daemon demands one: see [`Client::with_tls`] and [`tls`]. Files are read
//! again where they are replaced.
//!
//! **Logs** go to `tracing`: at `DEBUG` why a call is repeated after a pause, with its `request_id`, under which the
//! daemon's log has it too; at `WARN` that a file of certificates or of a token was replaced and cannot be used. What
//! happens on a connection that is kept open, its owner hears as events ([`node::Event`], [`sessions::Happening`]).

mod avoided;
mod base_url;
mod bulk;
mod doubt;
mod error;
mod events;
mod ids;
mod jobs;
pub mod node;
mod nodes;
mod nonces;
mod observe;
mod peer;
mod plans;
mod retry;
mod routes;
pub mod sessions;
mod socket;
pub mod tls;
mod token;
mod transport;
mod unreached;

pub use bulk::Bulks;
pub use doubt::Doubt;
pub use error::{Error, Result};
pub use events::{Event, Events, JobEvents, JobUpdate, PlanEvents};
pub use ids::Ids;
pub use jobs::{JobQuery, Jobs};
pub use nodes::Nodes;
pub use nonces::Granted;
pub use observe::{AuditQuery, LeaseQuery, NonceQuery, Page};
pub use peer::{Passed, PassedBack, Peers, connections};
pub use plans::{PlanQuery, Plans, TaskQuery, Tasks, Tenants};
pub use retry::Retry;
pub use sessions::{SessionQuery, Sessions};
pub use tls::TlsOptions;
pub use token::token_in;
pub use transport::{Client, IDLE_MAX};
pub use wire;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wire::nonces::GrantRequest;

    use super::node::{Failure, Job, Worker, WorkerOptions};
    use super::sessions::{JobSender, SessionSocket};
    use super::*;

    fn may_be_shared<T: Send + Sync + 'static>() {}

    fn may_move<T: Send>(_: T) {}

    fn is_kept_by_one<T: Send + 'static>() {}

    #[test]
    fn services_share_what_they_keep_and_move_calls_among_threads() {
        may_be_shared::<Client>();
        may_be_shared::<Error>();
        may_be_shared::<Worker>();
        may_be_shared::<JobSender>();
        is_kept_by_one::<SessionSocket>();
        is_kept_by_one::<JobEvents>();
        is_kept_by_one::<PlanEvents>();
        is_kept_by_one::<Events>();
        let client = Client::new(["http://h"], None).unwrap();
        may_move(client.grant("s", &GrantRequest::default(), None));
        may_move(client.settle("s", Vec::new()));
        may_move(client.jobs().wait("j", Duration::ZERO));
        may_move(client.jobs().events("j").next());
        may_move(client.plans().wait("p", Duration::ZERO));
        may_move(client.sessions().connect("s", 0));
        may_move(client.events(&[]));
        let worker = Worker::new(WorkerOptions::new(["http://h"], "n")).unwrap();
        let handler = |job: Job| async move { Ok::<_, Failure>(job.payload) };
        may_move(worker.run(handler, std::future::pending()));
    }
}
