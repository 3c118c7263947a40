//! Who may see and do what, over every route and socket that the daemon's own document names, so that a new route is
//! covered by itself: pages of other origins in a real browser, tokens of other tenants, scopes, tokens that change, and
//! the audit of what operators do.

mod audit;
mod browser;
mod chromium;
mod node_ids;
pub mod operations;
mod rotation;
mod scopes;
mod tenants;
pub mod world;
