//! Every metric of the daemon: its name, what it counts, its labels, its buckets, and the series that exist from the start.
//!
//! The crates record under these names; a test compares the table with their source, with docs/monitoring.md, and with what
//! is exposed. What must never live here: a label whose values are ids of signers, sessions, jobs, nodes, plans, tenants or
//! instances.

use domain::signer::BATCH_OPERATIONS;

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    pub labels: &'static [&'static str],
    /// What is there from the start: in each group every combination of these values, in the labels' order. Without any
    /// group a series appears when it is first recorded.
    pub series: &'static [&'static [&'static [&'static str]]],
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// With the upper edges of its buckets.
    Histogram(&'static [f64]),
}

/// In memory, without a system call: from 100 ns.
const SELECTION_SECONDS: &[f64] =
    &[1e-7, 2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 1e-3, 1e-2];
/// One write to a disk, or several: from 100 µs.
const COMMIT_SECONDS: &[f64] =
    &[1e-4, 2.5e-4, 5e-4, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// One command over the network, or a notice: from 50 µs.
const BUS_SECONDS: &[f64] =
    &[5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// A request, with its commits: from 250 µs to the longest wait that a request may ask for.
const REQUEST_SECONDS: &[f64] = &[
    2.5e-4, 5e-4, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Waiting and running: up to an hour.
const WAITING_SECONDS: &[f64] = &[
    1e-4, 5e-4, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1_800.0,
    3_600.0,
];
/// Parts of a batch.
const SIZES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];

/// No labels: one series.
const ALONE: &[&[&[&str]]] = &[&[]];

/// The kinds of leases.
const LEASES: &[&str] = &["signer", "session", "plan", "tenant", "instance", "id-worker"];
/// Those that are taken from dead instances. A tenant's lock is not: it belongs to a task, and outlives the plan's owner.
const TAKEN_OVER: &[&str] = &["signer", "session", "plan", "instance", "id-worker"];
/// The kinds of owners.
const OWNERS: &[&str] = &["signer", "lane", "session", "plan"];
/// What a write that is fenced would have done: the batches of signers, and of all others.
const FENCED_OPERATIONS: &[&str] = &[
    "grant",
    "settle",
    "resolve",
    "policy",
    "expire",
    "jobs",
    "hold_jobs",
    "close_session",
    "transfer_jobs",
    "promote_jobs",
    "result",
    "plan",
    "tenant_lock",
    "bulk",
    "open_id_mark",
    "id_mark",
    "id_lower",
];
/// What an instance hands on to another one that can carry it out.
const HANDED_ON: &[&str] = &["job", "session", "snowflake"];
/// What commits are gathered in trains.
const TRAINS: &[&str] = &["nonces", "jobs", "sequences", "plans"];
/// How a job ends.
const OUTCOMES: &[&str] = &["succeeded", "failed", "cancelled", "timed_out"];
/// What is deleted when it is old.
const PURGED: &[&str] = &["keys", "audits", "instances", "jobs", "sessions", "plans", "bulks"];
/// The checks of `/readyz`.
const CHECKS: &[&str] = &["ledger", "bus", "snowflakes", "plans"];
/// The statuses of plans.
const PLAN_STATUSES: &[&str] = &["CREATED", "RUNNING", "PAUSED", "ATTENTION", "SUCCEEDED", "CANCELLED"];
/// The statuses of tasks, and that of a stage of which nobody knows what it did.
const TASK_STATUSES: &[&str] =
    &["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "PAUSED", "INTERRUPTED", "CANCELLED", "UNKNOWN"];

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help, labels: &[], series: ALONE }
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help, labels: &[], series: ALONE }
}

const fn histogram(name: &'static str, buckets: &'static [f64], help: &'static str) -> Metric {
    Metric { name, kind: Kind::Histogram(buckets), help, labels: &[], series: ALONE }
}

impl Metric {
    const fn by(
        self,
        labels: &'static [&'static str],
        series: &'static [&'static [&'static [&'static str]]],
    ) -> Self {
        Self { labels, series, ..self }
    }

    /// Every combination of values that is there from the start.
    pub fn combinations(&self) -> Vec<Vec<&'static str>> {
        let product = |group: &&[&[&'static str]]| {
            group.iter().fold(vec![Vec::new()], |found: Vec<Vec<_>>, values| {
                let longer = |so_far: &Vec<&'static str>| {
                    let with = |value: &&'static str| so_far.iter().copied().chain([*value]).collect();
                    values.iter().map(with).collect::<Vec<Vec<_>>>()
                };
                found.iter().flat_map(longer).collect()
            })
        };
        self.series.iter().flat_map(product).collect()
    }
}

/// All of them.
pub const METRICS: &[Metric] = &[
    // The process.
    counter("process_cpu_seconds_total", "Processor time of the process, in whole seconds"),
    gauge("process_start_time_seconds", "When the process started, in seconds since 1970"),
    gauge("process_resident_memory_bytes", "Memory that the process occupies"),
    gauge("process_virtual_memory_bytes", "Addresses that the process has mapped"),
    gauge("process_virtual_memory_max_bytes", "The most addresses that the process may map"),
    gauge("process_open_fds", "File descriptors that are open"),
    gauge("process_max_fds", "The most file descriptors that may be open"),
    gauge("process_threads", "Threads of the process"),
    gauge("fencepost_build_info", "Always 1; the version of the daemon is a label").by(&["version"], &[]),
    gauge("fencepost_readyz_check", "What /readyz says of each check: 0 for ok, 1 for warn, 2 for down; asked every 5 s")
        .by(&["of"], &[&[CHECKS]]),
    gauge(
        "fencepost_clock_offset_seconds",
        "The machine's clock minus the database's, asked every 10 s; half a round trip uncertain",
    )
    .by(&[], &[]),
    counter(
        "fencepost_internal_errors_total",
        "Requests, and jobs of a batch, a retry of many, a bulk operation or a session's socket, that a defect refused, and \
         work of the instance itself that a defect interrupted",
    ),
    counter("fencepost_purge_failures_total", "Purges of what is old that failed, by what they were of; each is tried again")
        .by(&["of"], &[&[PURGED]]),
    counter("fencepost_token_reload_total", "Reloads of the tokens, by result")
        .by(&["result"], &[&[&["ok", "refused", "waits"]]]),
    // Requests.
    counter("fencepost_http_requests_total", "Requests answered, by route, method and status")
        .by(&["route", "method", "status"], &[]),
    histogram("fencepost_http_request_seconds", REQUEST_SECONDS, "The time from a request's head to its answer's head")
        .by(&["route"], &[]),
    gauge(
        "fencepost_http_requests_in_flight",
        "Requests whose answer has not begun; sockets and event streams that are open are not among them",
    ),
    gauge("fencepost_callers_bytes", "Bytes of bodies that are being read, and of answers that wait for their readers")
        .by(&["of"], &[&[&["reading", "sending"]]]),
    gauge("fencepost_sockets", "Sockets of nodes and of sessions' clients that are open"),
    counter("fencepost_trace_spans_total", "Spans for the collector of traces, by what came of them")
        .by(&["result"], &[&[&["sent", "dropped"]]]),
    counter("fencepost_forward_total", "Requests for keys of other instances, by what came of them").by(
        &["result"],
        &[&[&[
            "answered",
            "redirected",
            "overloaded",
            "unreachable",
            "lost",
            "draining",
            "mistaken",
            "not_owner",
            "late",
            "distrusted",
        ]]],
    ),
    counter("fencepost_handed_on_total", "What this instance accepted and another one carried out, by kind")
        .by(&["kind"], &[&[HANDED_ON]]),
    gauge("fencepost_event_streams", "Event streams that are open, by what they follow")
        .by(&["of"], &[&[&["job", "plan", "all"]]]),
    counter("fencepost_event_streams_cut_off_total", "Event streams that ended because their client did not read"),
    // Leases and fencing.
    counter("fencepost_lease_acquire_total", "Leases asked for, by kind and result")
        .by(&["kind", "result"], &[&[LEASES, &["acquired", "held", "error"]]]),
    counter("fencepost_lease_renew_total", "Leases to be renewed, by kind and result")
        .by(&["kind", "result"], &[&[LEASES, &["renewed", "lost", "error"]]]),
    counter("fencepost_lease_takeover_total", "Leases taken from dead instances, and lanes and plans adopted")
        .by(&["kind", "reason"], &[&[TAKEN_OVER, &["dead"]], &[&["session", "plan", "instance"], &["adopted"]], &[&["session"], &["left"]]]),
    counter("fencepost_fence_reject_total", "Writes refused because their owner had lost its lease, by operation")
        .by(&["op"], &[&[FENCED_OPERATIONS]]),
    counter("fencepost_ledger_went_back_total", "Times that the ledger was found to have gone back in time"),
    gauge("fencepost_ledger_went_back", "1 while the ledger counts as gone back in time and every request is refused, else 0"),
    counter("fencepost_tls_reload_total", "Times that certificates were read again, by their use and result")
        .by(&["of", "result"], &[&[&["listener", "peers"], &["ok", "refused"]]]),
    gauge(
        "fencepost_file_refused",
        "1 while what the files of tokens or certificates hold was refused, and what was read before stays in force, else 0",
    )
    .by(&["of"], &[&[&["tokens", "listener", "peers"]]]),
    gauge(
        "fencepost_tls_certificate_expires_seconds",
        "When the certificate in use expires, in seconds since 1970, by its use; 0 without one",
    )
    .by(&["of"], &[&[&["listener", "peers"]]]),
    counter("fencepost_forward_unproven_total", "Requests that claim to be forwarded, without a credential that proves it"),
    counter("fencepost_ledger_failover_total", "Failovers of PostgreSQL to a synchronous standby"),
    counter("fencepost_database_clock_jump_total", "Times that the database's clock was stepped by more than 1 s")
        .by(&["direction"], &[&[&["back", "forward"]]]),
    // Owners.
    gauge("fencepost_actor_queue_depth", "Commands that wait for their owner, by kind of owner")
        .by(&["kind"], &[&[OWNERS]]),
    histogram("fencepost_actor_queue_seconds", WAITING_SECONDS, "The time that a command waits for its owner")
        .by(&["kind"], &[&[OWNERS]]),
    // Commits.
    histogram("fencepost_commit_seconds", COMMIT_SECONDS, "The time from an owner's batch to its commit")
        .by(&["op"], &[&[&BATCH_OPERATIONS]]),
    histogram("fencepost_commit_train_size", SIZES, "Batches that share one commit").by(&["of"], &[&[TRAINS]]),
    histogram("fencepost_commit_train_seconds", COMMIT_SECONDS, "The duration of one commit")
        .by(&["of"], &[&[TRAINS]]),
    gauge("fencepost_pool_in_use", "Connections of a pool that are borrowed").by(&["pool"], &[]),
    // Nonces.
    counter("fencepost_nonce_grants_total", "Nonces granted"),
    gauge("fencepost_nonces", "Nonces of the whole cluster that are not consumed, by state")
        .by(&["state"], &[&[&["HELD", "RELEASED", "QUARANTINED"]]]),
    // Jobs and sessions.
    counter("fencepost_jobs_total", "Changes of jobs' states that this instance wrote; CREATED counts acceptances alone")
        .by(&["state", "outcome"], &[&[&["CREATED", "DISPATCHED", "RUNNING"], &[""]], &[&["FINISHED"], OUTCOMES]]),
    counter(
        "fencepost_job_kinds_total",
        "Jobs whose end this instance wrote, by their kind and outcome: the first 100 kinds, then `other`; empty without one",
    )
    .by(&["kind", "outcome"], &[&[&["", "other"], OUTCOMES]]),
    histogram(
        "fencepost_job_seconds",
        WAITING_SECONDS,
        "The time of an attempt by stage: waiting from when the job is due to its dispatch (for some that were delayed, from \
         their acceptance), starting from then to its node's acknowledgement, running from the dispatch to the recorded result",
    )
    .by(&["stage"], &[&[&["waiting", "starting", "running"]]]),
    gauge(
        "fencepost_pool_waiting",
        "Jobs of the whole cluster that are due and wait, by the pool that they name, counted every few seconds: the \
         configured pools (the first 1000 that the process meets), all others as `other`; empty for none",
    )
    .by(&["pool"], &[&[&["", "other"]]]),
    gauge("fencepost_pool_oldest_seconds", "For how long the job that waits longest has been due, by pool as above")
        .by(&["pool"], &[&[&["", "other"]]]),
    gauge("fencepost_slots", "Slots of the nodes that this instance knows: those that are taken, and all")
        .by(&["state"], &[&[&["used", "all"]]]),
    gauge("fencepost_jobs_waiting", "Jobs that wait for a slot in this instance's memory"),
    counter("fencepost_dispatch_revoked_total", "Attempts that were taken back, by reason").by(
        &["reason"],
        &[&[&[
            "not_acknowledged",
            "rejected",
            "undeliverable",
            "node_lost_unsent",
            "node_lost",
            "unlisted",
            "timed_out",
        ]]],
    ),
    counter("fencepost_attempt_reports_total", "Reports of attempts to other instances, by what came of them")
        .by(&["result"], &[&[&["sent", "full", "overflow", "failed", "undeliverable", "no_owner"]]]),
    counter("fencepost_job_notices_left_out_total", "Events that a stream of all jobs left out"),
    // Nodes.
    gauge("fencepost_registry_nodes", "Nodes that this instance knows"),
    histogram(
        "fencepost_registry_lag_seconds",
        BUS_SECONDS,
        "The time from the arrival of a notice about nodes until it is applied, and from asking for records until they are read",
    ),
    counter("fencepost_registry_cache_total", "Updates of nodes, by whether the notice had what changed")
        .by(&["result"], &[&[&["hit", "stale", "miss"]]]),
    histogram("fencepost_node_heartbeat_seconds", BUS_SECONDS, "The time from a heartbeat's arrival to its record"),
    histogram("fencepost_node_select_seconds", SELECTION_SECONDS, "The duration of a selection, of one in 64"),
    // The bus.
    histogram("fencepost_redis_command_seconds", BUS_SECONDS, "The duration of a command to Redis")
        .by(&["command"], &[]),
    histogram("fencepost_pubsub_lag_seconds", BUS_SECONDS, "The time that a notice to oneself takes over Pub/Sub"),
    counter("fencepost_bus_rejected_total", "Messages in Redis of other hands, and copies, that were dropped")
        .by(&["what", "why"], &[&[&["entry", "notice"], &["seal", "replay"]]]),
    gauge("fencepost_instances_on_other_buses", "Live instances that use another bus by mistake, or are not seen on this one"),
    gauge("fencepost_redis_half_moved_slots", "Hash slots of a Redis Cluster that are half moved, and refuse scripts for it"),
    gauge("fencepost_inbox_pending", "Messages of other instances that wait in this instance's inbox"),
    // Plans.
    gauge("fencepost_plans", "Plans of the cluster that are kept, by status").by(&["status"], &[&[PLAN_STATUSES]]),
    gauge("fencepost_plan_tasks", "Tasks of the cluster's plans that are not over, by status")
        .by(&["status"], &[&[TASK_STATUSES]]),
    gauge(
        "fencepost_plan_oldest_seconds",
        "The time since the last change of the task, or UNKNOWN stage, that has not changed for longest, by status",
    )
        .by(&["status"], &[&[TASK_STATUSES]]),
    gauge("fencepost_checkpoints_waiting", "Plans whose checkpoint the ledger has not taken yet"),
    histogram("fencepost_checkpoint_write_seconds", COMMIT_SECONDS, "The time from a stage's end to its checkpoint"),
    counter("fencepost_checkpoint_write_failures_total", "Failed tries to write a stage's result or checkpoint"),
    histogram("fencepost_stage_seconds", WAITING_SECONDS, "The time from a stage's begin to its result")
        .by(&["outcome"], &[&[OUTCOMES]]),
    counter("fencepost_tenant_locks_total", "Tenants' locks, by what became of them")
        .by(&["result"], &[&[&["taken", "refused", "broken"]]]),
    // Ids.
    counter("fencepost_ids_total", "Ids issued, by kind")
        .by(&["kind"], &[&[&["snowflake", "segment", "sequence", "uuid"]]]),
    counter("fencepost_segment_wait_total", "Requests that waited for a segment"),
    counter("fencepost_segment_loads_total", "Segments taken from the ledger, by result")
        .by(&["result"], &[&[&["loaded", "refused", "error"]]]),
    gauge(
        "fencepost_segment_left_seconds",
        "How long the ids in memory last of the tag that runs out first; 3600 if longer, or if none are asked for",
    ),
    counter("fencepost_clock_rollback_total", "Times that the machine's clock was found to have gone back by more than 5 ms"),
];
