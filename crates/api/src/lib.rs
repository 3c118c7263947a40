//! The HTTP surface of Fencepost.
//!
//! What lives here: routes, bearer tokens, reading and refusing requests, the translation between
//! `wire` and `domain`, the table that turns refusals into problems, and the OpenAPI document.
//! What must never: a decision about a nonce, SQL, or a request that waits without a limit.
//! `actix-web` is named in no other crate.
//!
//! A `connection` hands on what it reads at the pace of its requests. A request passes `gate` (id, token, metrics). Then its
//! handler reads it with `extract` and `from_wire`, has the `Forwarder` bring it to the owner of the key (in this process, or
//! on another instance) or, for a read, asks the ledger, and answers with `to_wire`. A job's fields have both ways in
//! `job_fields`, a plan's in `plan_fields`. The modules use each other in one direction: `server` uses the handlers, they use
//! `forwarder` and `state`, and those use the leaves (`services`, `settings`, `limits`, `refusal`).

mod audit;
mod auth;
mod bulk;
mod connection;
mod cursors;
mod dashboard;
mod drain_body;
mod event_feeds;
mod events;
mod extract;
mod forwarder;
mod from_wire;
mod gate;
mod id_counters;
mod idempotency;
mod ids;
mod instances;
mod job_fields;
mod jobs;
mod keys_seen;
mod large_pages;
mod leases;
pub mod limits;
mod loopback;
mod modes;
mod node_claims;
mod nodes;
mod once_open;
mod openapi;
mod ops;
mod parser_refusals;
mod peer_credential;
mod plan_fields;
mod plans;
mod probe;
mod read_turn;
mod recent;
mod refusal;
mod request_id;
mod routes;
mod seen_pages;
mod server;
mod services;
mod sessions;
mod settings;
mod shared_reads;
mod shares;
mod signers;
mod signers_seen;
mod state;
mod stats;
#[cfg(test)]
mod tests;
mod tls;
mod to_wire;
mod traces;
mod traffic;
mod visibility;
mod websocket;
mod whoami;
mod worker;

pub use auth::{Auth, Scope, Sees, Token, digest};
pub use from_wire::{TIME, time_in};
pub use openapi::document;
pub use probe::Probe;
pub use server::{Handle, Server};
pub use services::{Awaited, Early, Generators, Incarnation, Services};
pub use settings::{OnMisroute, Settings};
pub use tls::{Tls, TlsFiles};
pub use traces::start_traces;
