//! Plans: the same procedure for many tenants, in stages, with people in the loop.
//!
//! A plan has an ordered list of tasks, each for one tenant; a task has stages in order. A run is one execution of a task,
//! and a retry opens the next. A finished stage leaves a checkpoint, from which the next continues. Nothing is begun again
//! after a crash before a person says so.
//!
//! ```text
//!            turn                 last stage
//!  PENDING ───────▶ RUNNING ─────────────────▶ SUCCEEDED
//!     ▲   ▲         │  │  │ stage failed, over time
//!     │   │  resume │  │  └──────────────────▶ FAILED ──────┐
//!     │   └── PAUSED ◀  │ owner changed                     │
//!     │         │       └─────────────────▶ INTERRUPTED ────┤
//!     │         │                                           │ retry: run + 1
//!     └─────────┴───────────────────────────────────────────┘
//!  (cancel: from every status but SUCCEEDED to CANCELLED, which a retry may leave)
//! ```

pub mod spec;
mod state;
mod status;

pub use spec::{PlanSpec, StageSpec, TaskSpec};
pub use state::{
    Checkpoint, Command, EventKind, From, PlanEvent, PlanState, Refused, Resolution, Retry, Seen, StageEnd,
    StageStart, StageState, Step, TaskState, Writes,
};
pub use status::{Intent, OnFailure, OnUnknown, PlanStatus, StageStatus, TaskStatus};
