//! Plans: made and steered over HTTP, their stages run by real nodes, through the deaths of their owners.

mod decisions;
mod losses;
mod order;
mod refusals;
mod retries;
pub mod rig;
mod tenants;
