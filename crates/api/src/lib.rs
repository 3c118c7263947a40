//! The HTTP surface of Fencepost.
//!
//! What lives here: routes, bearer tokens, reading and refusing requests, the translation between
//! `wire` and `domain`, the table that turns refusals into problems, and the OpenAPI document.
//! What must never: a decision about a nonce, SQL, or a request that waits without a limit.
//! `actix-web` is named in no other crate.
//!
//! A request passes `gate` (id, token, metrics), then its handler, which reads it with `extract`,
//! has `routing` bring it to the owner of the key (here, or on another instance) or, for the audit, asks the
//! ledger, and answers.

mod auth;
mod events;
mod extract;
mod gate;
mod housekeeping;
mod ids;
mod instances;
mod jobs;
mod late;
mod leases;
pub mod limits;
mod modes;
mod nodes;
mod openapi;
mod recent;
mod refusal;
mod request_id;
mod routes;
mod routing;
mod server;
mod sessions;
mod shown;
mod signers;
mod state;
#[cfg(test)]
mod tests;
mod unread;
mod worker;

pub use auth::{Auth, Scope};
pub use openapi::document;
pub use routing::OnMisroute;
pub use server::{Early, Generators, Handle, Incarnation, Server, Services, Settings};
