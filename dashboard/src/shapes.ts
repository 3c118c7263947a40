// The shapes of the API's answers, as far as the pages use them. /openapi.json describes them.

export type List<T> = { items: T[]; next_cursor: string | null };

export type Scope = 'read' | 'submit' | 'node' | 'admin';
export type Whoami = {
    name: string | null;
    scopes: Scope[];
    sees_everything: boolean;
    instance: string | null;
    version: string;
};

export type JobState = 'CREATED' | 'DISPATCHED' | 'RUNNING' | 'FINISHED';
export type Outcome = 'succeeded' | 'failed' | 'cancelled' | 'timed_out';
export type Route = { source: string; target: string };
export type Attempt = { attempt: number; node: string; state: string; reason: string; at: string };
/** Why a job waits. Newer daemons may add reasons. */
export type WaitingFor = { reason: string; detail: string; until?: string };
export type Job = {
    id: string;
    state: JobState;
    outcome: Outcome | null;
    lane: string;
    session: string | null;
    seq: number | null;
    tenant: string | null;
    pool: string | null;
    route: Route | null;
    requires: string[];
    priority: number;
    timeout_ms: number;
    attempt: number;
    max_attempts: number;
    node: string | null;
    kind: string | null;
    metadata: Record<string, string>;
    traceparent?: string;
    payload?: unknown;
    result?: unknown;
    error: string | null;
    dead: boolean;
    waiting_for?: WaitingFor;
    progress: { percent?: number; note?: string } | null;
    created_at: string;
    run_at: string | null;
    dispatched_at: string | null;
    running_at: string | null;
    finished_at: string | null;
    released_at: string | null;
    retry_of: string | null;
    retried_as: string | null;
    dismissed_at: string | null;
    attempts?: Attempt[];
};

export type BulkAction = 'retry' | 'cancel' | 'delete' | 'dismiss';
/** The answer to a dry run. With `at_least` the count ended early, and more jobs may match. */
export type BulkTrial = { matched: number; at_least: boolean; before: string };
export type Bulk = {
    id: string;
    action: BulkAction;
    filter: Record<string, string | boolean>;
    before: string;
    rate: number;
    status: 'RUNNING' | 'CANCELLING' | 'DONE' | 'CANCELLED' | 'FAILED';
    matched: number;
    done: number;
    skipped: number;
    failed: number;
    error: string | null;
    by: string;
    instance: string | null;
    created_at: string;
    finished_at: string | null;
};

/** FINISHED is null until the daemon has counted these for the first time. */
export type States = Record<Exclude<JobState, 'FINISHED'>, number> & { FINISHED: number | null };
export type Rate = { accepted_per_second: number; finished_per_second: Record<Outcome, number> };
export type Rates = Record<'1m' | '5m' | '15m', Rate>;
export type PoolStats = {
    pool: string | null;
    jobs: States;
    delayed: number;
    oldest_waiting_ms: number | null;
    rates: Rates;
    paused: boolean;
};
export type Stats = {
    instance: string;
    jobs: States;
    delayed: number;
    oldest_waiting_ms: number | null;
    rates: Rates;
    instances: { instance: string; counting_since: string | null; rates: Rates | null; problem?: string }[];
    history_since: string | null;
    /** Numbers of jobs, one for each step of time, the newest last. */
    history: { step_ms: number; ended_ms_ago: number } & Record<'accepted' | Outcome, number[]>;
    pools: PoolStats[];
    slots: { used: number; all: number };
    plans: Record<string, number>;
    tasks: Record<string, number>;
    unknown_stages: number;
    counted_ms_ago: number;
    finished_counted_ms_ago: number | null;
    plans_counted_ms_ago: number;
};

/** A session as a list shows it. */
export type ListedSession = {
    id: string;
    ordering: string;
    tenant: string | null;
    pool: string | null;
    route: Route | null;
    requires: string[];
    idle_ms: number;
    idle_for_ms: number;
    created_at: string;
    closed_at: string | null;
};
export type Session = ListedSession & {
    owner: string | null;
    last_node: string | null;
    last_seq: number;
    jobs: { created: number; dispatched: number; running: number; finished: number };
};

export type Node = {
    id: string;
    state: 'online' | 'draining' | 'unhealthy' | 'offline';
    capacity: number;
    used: number;
    load: { cpu?: number; gpu?: number; memory?: number } | null;
    labels: string[];
    pools: string[];
    services: string[];
    version: string | null;
    instance: string;
    registered_at: string | null;
    heartbeat_at: string | null;
    /** 0 while the node's instance alone knows of its connection. */
    record_version: number;
    seen_at: string;
};
export type Pool = { name: string; routes?: string[]; requires?: string[]; weight?: number };
export type PoolPause = { pool: string; reason: string; by: string; since: string; until: string | null };
export type Pools = { version: number; pools: Pool[]; paused: PoolPause[] };
export type Selection = {
    node: string | null;
    pool: string | null;
    considered: number;
    rejected: Record<string, number>;
    took_us: number;
};

export type Policy = {
    first_nonce: number;
    hold_ms: number | null;
    on_expiry: 'release' | 'quarantine';
    max_in_flight: number | null;
    shared_keys: boolean;
};
export type Signer = {
    signer: string;
    owner: string | null;
    fencing_token: number | null;
    lease_expires_in_ms: number;
    next_nonce: number;
    held: number;
    released: number;
    consumed: number;
    quarantined: number;
    oldest_hold_ms: number | null;
    recovering: boolean;
    policy: Policy;
};
export type Nonce = {
    nonce: number;
    hold: string;
    status: 'HELD' | 'CONSUMED' | 'RELEASED' | 'QUARANTINED';
    owner: string;
    held_until: string;
    tx_hash: string | null;
    created_at: string;
    updated_at: string;
};

export type Segment = {
    tag: string;
    description: string;
    max: string | null;
    start: string;
    step: number;
    next_step: number | null;
    left: number;
    rate: number;
    seconds_left: number | null;
    updated_at: string;
};
export type Snowflake = {
    id: string;
    timestamp: string;
    data_center: number;
    worker: number;
    sequence: number;
};

export type Plan = {
    id: string;
    name: string | null;
    status: string;
    intent: string;
    max_concurrency: number;
    on_failure: string;
    halted: boolean;
    over_time: boolean;
    timeout_ms: number;
    progress: Record<string, number> & { total: number };
    created_at: string;
    started_at: string | null;
    finished_at: string | null;
    attention?: { task: string; tenant: string; status: string; stage_name: string | null; reason: string | null }[];
};
export type Stage = { name: string; status: string; job: string | null; attempts?: number };
export type Task = {
    id: string;
    plan: string;
    place: number;
    tenant: string;
    name: string | null;
    status: string;
    intent: string;
    run: number;
    stage: number | null;
    reason: string | null;
    waits_for: string | null;
    stages: Stage[];
    has_checkpoint: boolean;
    checkpoint_version: number;
    checkpoint: { version: number; completed_stages: string[]; saved_at?: string; context?: unknown } | null;
    config?: unknown;
    context?: unknown;
    lock?: { token: number; expires_in_ms: number } | null;
    timeout_ms: number;
    run_at: string | null;
    updated_at: string;
};
export type PlanEvent = {
    seq: number;
    at: string;
    kind: string;
    task: string | null;
    run: number | null;
    stage: number | null;
    before: string | null;
    after: string | null;
    principal: string | null;
    reason: string | null;
};
export type Checkpoint = { version: number; run: number; completed_stages: string[]; saved_at: string; context: unknown };
export type Tenant = {
    tenant: string;
    task: Task;
    has_checkpoint: boolean;
    lock: { token: number; expires_in_ms: number; task: string; plan: string | null } | null;
};

export type Instance = {
    instance_id: string;
    url: string;
    hostname: string;
    pid: number;
    version: string;
    started_at: string;
    resources: number;
    on_ring?: boolean;
    bus_up?: boolean | null;
    bus?: string | null;
};
export type Cluster = { instance: string; mode: string; only?: string[] | null; ring_version: number; instances: Instance[] };
export type Mode = { mode: string; only?: string[] | null; version: number };
export type Lease = {
    resource: string;
    owner: string | null;
    fencing_token: number;
    acquired_at: string;
    renewed_at: string;
    expires_in_ms: number;
    live: boolean;
};
export type Checks = Record<string, { status: string; detail?: string | null }>;
export type Ready = { status: string; checks: Checks };
export type Audit = {
    id: number;
    at: string;
    principal: string;
    action: string;
    subject: string;
    before: string | null;
    after: string | null;
    reason: string | null;
    request_id: string | null;
};
