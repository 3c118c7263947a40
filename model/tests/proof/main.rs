//! The models hold in every run within their bounds, and each trap, reopened, breaks them. What must never live here is
//! a limit on depth, states or time: a search that did not finish proves nothing.

mod lease_protocol;
mod membership;
mod plans;
mod search;
mod slots;

use mimalloc::MiMalloc;

// A state is made by one thread of a search and freed by the other, which the system's allocator makes them wait for.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
