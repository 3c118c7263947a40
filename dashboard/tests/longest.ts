// Pages without a daemon: each answer of its API is made up, with values as long as the daemon takes or makes them.

import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { Page, Route } from '@playwright/test';
import type {
    Audit, Bulk, Checkpoint, Cluster, Job, Lease, ListedSession, Node, Nonce, Plan, PlanEvent, Pools, PoolStats, Ready, Segment,
    Session, Signer, Stats, Task, Tenant, Whoami,
} from '../src/shapes';

const ORIGIN = 'http://dashboard.test';
const DIST = resolve(process.env.DASHBOARD_DIST ?? 'dist');

/** Of the widest letter, and without a place where a line could break. */
const wide = (chars: number) => 'W'.repeat(chars);
/** Another one as long, for the second row of a list. */
const other = (chars: number) => 'M'.repeat(chars);

const ID = wide(128);
const POOL = wide(64);
const NAME = wide(128);
const REASON = `${wide(500)} ${'because '.repeat(60)}`;
const UUID = '0199ffff-ffff-7fff-bfff-ffffffffffff';
/** Of another year, so that it is written in full. */
const AT = '2000-12-30T23:59:59Z';
const MANY = 9_999_999;
const NONCE = Number.MAX_SAFE_INTEGER;
const LONG_MS = 99 * 86_400_000 + 23 * 3_600_000;
const ROUTE = { source: wide(35), target: wide(35) };
const LABELS = Array.from({ length: 16 }, (_, at) => `${wide(62)}${10 + at}`);

const JOB: Job = {
    id: UUID, state: 'CREATED', outcome: null, lane: `session:${ID}`, session: ID, seq: MANY, tenant: ID, pool: POOL, route: ROUTE, requires: LABELS,
    priority: -10, timeout_ms: 86_399_000, attempt: 100, max_attempts: 100, node: ID, kind: wide(64),
    metadata: { [wide(64)]: wide(256), short: 'x' }, traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
    payload: { [wide(200)]: wide(1_000) }, error: REASON, dead: false,
    waiting_for: { reason: 'owner_elsewhere', detail: REASON, until: AT }, progress: null,
    created_at: AT, run_at: AT, dispatched_at: null, running_at: null, finished_at: null, released_at: null, retry_of: UUID, retried_as: UUID,
    dismissed_at: null,
    attempts: [99, 100].map((attempt) => ({ attempt, node: ID, state: 'timed_out', reason: REASON, at: AT })),
};
const JOBS: Record<string, Job> = {
    waits: { ...JOB },
    dispatched: { ...JOB, state: 'DISPATCHED', dispatched_at: AT },
    running: { ...JOB, state: 'RUNNING', dispatched_at: AT, running_at: AT, progress: { percent: 99.5, note: wide(1_024) } },
    dead: { ...JOB, state: 'FINISHED', outcome: 'timed_out', dead: true, dispatched_at: AT, running_at: AT, finished_at: AT, result: { text: wide(1_000) } },
    dismissed: { ...JOB, state: 'FINISHED', outcome: 'timed_out', dismissed_at: AT, finished_at: AT },
    retried: { ...JOB, state: 'FINISHED', outcome: 'succeeded', finished_at: AT, error: null },
    stage: { ...JOB, state: 'FINISHED', outcome: 'failed', finished_at: AT, lane: `plan:${UUID}`, session: null },
};
for (const [at, job] of Object.values(JOBS).entries()) job.id = UUID.replace(/f$/, String(at));

const CONDITIONS = { state: 'FINISHED', outcome: 'timed_out', kind: wide(64), pool: POOL, tenant: ID, session: ID, dead: true };
const BULK: Bulk = {
    id: UUID, action: 'dismiss', filter: CONDITIONS, before: AT, rate: 10_000, status: 'RUNNING', matched: MANY, done: 0, skipped: 0, failed: 0, error: REASON,
    by: wide(64), instance: ID, created_at: AT, finished_at: null,
};
const OVER = ['DONE', 'CANCELLED', 'FAILED'];
const FILTERS: Record<string, Bulk['filter']> = { every: {}, one: { dead: true }, short: { tenant: 'acme' }, long: CONDITIONS };
/** How many were matched, and how many of them are done. */
const COUNTS = [[0, 0], [1, 0], [1_000_000, 500_000], [MANY, MANY - 1], [MANY, MANY]] as const;
/** A bulk operation in each state, of each action, with each filter and number. */
export const BULKS: Bulk[] = (['retry', 'cancel', 'delete', 'dismiss'] as const).flatMap((action) =>
    (['RUNNING', 'CANCELLING', 'DONE', 'CANCELLED', 'FAILED'] as const).flatMap((status) =>
        Object.entries(FILTERS).flatMap(([name, filter]) =>
            COUNTS.map(([matched, done]) => ({
                ...BULK, id: [action, status, name, matched, done].join('-'), action, status, filter, matched, done,
                finished_at: OVER.includes(status) ? AT : null,
            })),
        ),
    ),
);

const SESSION: Session = {
    id: ID, ordering: 'best_effort', tenant: ID, pool: POOL, route: ROUTE, requires: LABELS, idle_ms: 604_799_000, idle_for_ms: 604_799_000, created_at: AT,
    closed_at: null, owner: ID, last_node: ID, last_seq: MANY, jobs: { created: MANY, dispatched: MANY, running: MANY, finished: MANY },
};
const SESSIONS: ListedSession[] = [SESSION, { ...SESSION, id: other(128), closed_at: AT }];

const NODE: Node = {
    id: ID, state: 'unhealthy', capacity: 10_000, used: 10_000, load: { cpu: 999_999.99, gpu: 999_999.99, memory: 999_999.99 }, labels: LABELS,
    pools: Array.from({ length: 64 }, (_, at) => `${wide(62)}${10 + at}`), services: LABELS, version: wide(128), instance: ID, registered_at: AT,
    heartbeat_at: AT, record_version: MANY, seen_at: AT,
};
const NODES: Node[] = [NODE, { ...NODE, id: other(128), state: 'draining' }];

const PAUSE = { pool: POOL, reason: REASON, by: wide(64), since: AT, until: AT };
const POOLS: Pools = {
    version: MANY,
    pools: [
        { name: POOL, routes: [`${ROUTE.source}:${ROUTE.target}`, 'zh:en'], requires: LABELS, weight: 1_000 },
        { name: other(64), requires: ['batch'] },
    ],
    paused: [PAUSE],
};

/** Jobs per second: more than any cluster runs. */
const PER_SECOND = 99_999;
const RATE = { accepted_per_second: PER_SECOND, finished_per_second: { succeeded: PER_SECOND, failed: PER_SECOND, timed_out: PER_SECOND, cancelled: PER_SECOND } };
const RATES = { '1m': RATE, '5m': RATE, '15m': RATE };
const poolStats = (pool: string | null): PoolStats => ({
    pool, jobs: { CREATED: MANY, DISPATCHED: MANY, RUNNING: MANY, FINISHED: MANY }, delayed: 0, oldest_waiting_ms: LONG_MS, rates: RATES, paused: true,
});
const STEPS = Array.from({ length: 300 }, () => MANY);
const STATS: Stats = {
    instance: ID, jobs: { CREATED: 2 * MANY, DISPATCHED: MANY, RUNNING: MANY, FINISHED: MANY }, delayed: MANY, oldest_waiting_ms: LONG_MS, rates: RATES,
    instances: [
        { instance: ID, counting_since: AT, rates: RATES },
        { instance: other(128), counting_since: null, rates: null, problem: REASON },
    ],
    history_since: AT, history: { step_ms: 3_000, ended_ms_ago: 0, accepted: STEPS, succeeded: STEPS, failed: STEPS, timed_out: STEPS, cancelled: STEPS },
    pools: [poolStats(POOL), poolStats(null)], slots: { used: MANY, all: MANY },
    plans: { CREATED: MANY, RUNNING: MANY, PAUSED: MANY, ATTENTION: MANY, SUCCEEDED: MANY, CANCELLED: MANY },
    tasks: { PENDING: MANY, RUNNING: MANY, SUCCEEDED: MANY, FAILED: MANY, PAUSED: MANY, INTERRUPTED: MANY, CANCELLED: MANY },
    unknown_stages: MANY, counted_ms_ago: LONG_MS, finished_counted_ms_ago: LONG_MS, plans_counted_ms_ago: LONG_MS,
};

const SIGNER: Signer = {
    signer: ID, owner: ID, fencing_token: NONCE, lease_expires_in_ms: LONG_MS, next_nonce: NONCE, held: MANY, released: MANY, consumed: NONCE, quarantined: MANY,
    oldest_hold_ms: LONG_MS, recovering: true,
    policy: { first_nonce: NONCE, hold_ms: 604_799_000, on_expiry: 'quarantine', max_in_flight: 1_000_000, shared_keys: true },
};
const SIGNERS: Signer[] = [SIGNER, { ...SIGNER, signer: other(128), recovering: false }];
const NONCES: Nonce[] = (['QUARANTINED', 'HELD', 'CONSUMED', 'RELEASED'] as const).map((status, at) => ({
    nonce: NONCE - at, hold: UUID, status, owner: ID, held_until: AT, tx_hash: wide(128), created_at: AT, updated_at: AT,
}));

const SEGMENTS: Segment[] = [wide(128), other(128)].map((tag) => ({
    tag, description: wide(1_024), max: '9223372036854775807', start: '0', step: 1_000_000_000, next_step: 1_000_000_000, left: 1_000_000_000,
    rate: MANY, seconds_left: LONG_MS / 1_000, updated_at: AT,
}));

const TASK: Task = {
    id: UUID, plan: UUID, place: 1_000, tenant: ID, name: NAME, status: 'INTERRUPTED', intent: 'pause', run: 100, stage: 100, reason: REASON, waits_for: UUID,
    stages: [
        { name: NAME, status: 'SUCCEEDED', job: UUID, attempts: 100 },
        { name: other(128), status: 'UNKNOWN', job: UUID, attempts: 100 },
        ...Array.from({ length: 98 }, (_, at) => ({ name: `stage-${at}`, status: 'PENDING', job: null })),
    ],
    has_checkpoint: true, checkpoint_version: 1_000, checkpoint: { version: 1_000, completed_stages: [NAME, other(128)], saved_at: AT },
    config: { [wide(64)]: wide(1_000) }, context: { [wide(64)]: wide(1_000) }, lock: { token: NONCE, expires_in_ms: LONG_MS }, timeout_ms: 604_799_000,
    run_at: AT, updated_at: AT,
};
const TASKS: Task[] = [TASK, { ...TASK, id: other(36), tenant: other(128), name: null, status: 'RUNNING' }];
const PLAN: Plan = {
    id: UUID, name: NAME, status: 'ATTENTION', intent: 'pause', max_concurrency: 100, on_failure: 'continue', halted: true, over_time: true,
    timeout_ms: 604_799_000,
    progress: { total: 1_000, pending: 1_000, running: 1_000, succeeded: 1_000, failed: 1_000, paused: 1_000, interrupted: 1_000, cancelled: 1_000 },
    created_at: AT, started_at: AT, finished_at: AT,
    attention: [
        { task: UUID, tenant: ID, status: 'INTERRUPTED', stage_name: NAME, reason: REASON },
        { task: other(36), tenant: other(128), status: 'FAILED', stage_name: 'x', reason: null },
    ],
};
export const PLANS: Plan[] = [PLAN, ...['CREATED', 'RUNNING', 'PAUSED', 'SUCCEEDED', 'CANCELLED'].map((status) => ({ ...PLAN, id: status, name: null, status }))];
const EVENTS: PlanEvent[] = [UUID, other(36), null].map((task, at) => ({
    seq: at, at: AT, kind: 'stage_interrupted', task, run: 100, stage: 100, before: 'INTERRUPTED', after: 'INTERRUPTED', principal: wide(64), reason: REASON,
}));
const CHECKPOINTS: Checkpoint[] = [1_000, 999].map((version) => ({
    version, run: 100, completed_stages: [NAME, ...Array.from({ length: 99 }, (_, at) => `stage-${at}`)], saved_at: AT, context: { text: wide(1_000) },
}));
const TENANT: Tenant = { tenant: ID, task: TASK, has_checkpoint: true, lock: { token: NONCE, expires_in_ms: LONG_MS, task: UUID, plan: UUID } };

const CLUSTER: Cluster = {
    instance: ID, mode: 'worker-queue', only: [ID, other(128)], ring_version: MANY,
    instances: [ID, other(128), wide(127)].map((instance_id, at) => ({
        instance_id, url: `https://${wide(200)}:65535`, hostname: wide(255), pid: MANY, version: '100.100.100', started_at: AT, resources: MANY,
        on_ring: at !== 1, bus_up: at !== 2, bus: wide(300),
    })),
};
const LEASES: Lease[] = [ID, other(128)].map((name, at) => ({
    resource: `id-worker:${name}`, owner: ID, fencing_token: NONCE, acquired_at: AT, renewed_at: AT, expires_in_ms: LONG_MS, live: at === 0,
}));
const READY: Ready = {
    status: 'degraded',
    checks: { ledger: { status: 'degraded', detail: REASON }, snowflakes: { status: 'ok', detail: wide(300) }, [wide(24)]: { status: 'down' } },
};
const AUDIT: Audit[] = [1, 2].map((id) => ({
    id, at: AT, principal: wide(64), action: 'undrain_node_of_all', subject: `signer:${ID} nonce ${NONCE}`, before: wide(1_000), after: wide(1_000),
    reason: REASON, request_id: UUID,
}));
const WHOAMI: Whoami = { name: wide(64), scopes: ['read', 'submit', 'node', 'admin'], sees_everything: true, instance: ID, version: '100.100.100-beta.100' };
const MODE = { mode: 'worker-queue', only: [ID], version: MANY };
const SELECTION = { node: ID, pool: POOL, considered: MANY, rejected: { pool: MANY, labels: MANY, full: 1, [wide(20)]: MANY }, took_us: 1 };
const OWNER = { resource: `signer:${ID}`, instance_id: ID, url: `https://${wide(200)}:65535`, leased: true };
const TRIAL = { matched: MANY, at_least: true, before: AT };
const SNOWFLAKE = { id: '9223372036854775807', timestamp: '2000-12-30T23:59:59.999Z', data_center: 31, worker: 31, sequence: 4_095 };

/** A list's first page. One more follows it, which is the last. */
const list = (items: unknown[]) => ({ items, next_cursor: 'c' });

/** What the daemon answers, by the method and the path: the first that matches. */
const ANSWERS: [asked: RegExp, answer: (found: RegExpExecArray) => object | undefined][] = [
    [/^GET \/readyz$/, () => READY],
    [/^GET \/v1\/whoami$/, () => WHOAMI],
    [/^GET \/v1\/stats$/, () => STATS],
    [/^GET \/v1\/cluster$/, () => CLUSTER],
    [/^GET \/v1\/cluster\/owner\/./, () => OWNER],
    [/^GET \/v1\/config\/mode$/, () => MODE],
    [/^GET \/v1\/config\/pools$/, () => POOLS],
    [/^GET \/v1\/jobs$/, () => list(Object.values(JOBS))],
    [/^GET \/v1\/jobs\/(.+)$/, ([, id]) => Object.values(JOBS).find((job) => job.id === id)],
    [/^POST \/v1\/bulk$/, () => TRIAL],
    [/^GET \/v1\/bulk$/, () => list(BULKS)],
    [/^GET \/v1\/bulk\/(.+)$/, ([, id]) => BULKS.find((bulk) => bulk.id === id)],
    [/^GET \/v1\/sessions$/, () => list(SESSIONS)],
    [/^GET \/v1\/sessions\/./, () => SESSION],
    [/^POST \/v1\/nodes\/select$/, () => SELECTION],
    [/^GET \/v1\/nodes$/, () => list(NODES)],
    [/^GET \/v1\/nodes\/./, () => NODE],
    [/^GET \/v1\/signers$/, () => list(SIGNERS)],
    [/^GET \/v1\/signers\/[^/]+\/nonces$/, () => list(NONCES)],
    [/^GET \/v1\/signers\/./, () => SIGNER],
    [/^GET \/v1\/ids\/segments$/, () => list(SEGMENTS)],
    [/^GET \/v1\/ids\/snowflake$/, () => ({ ids: [SNOWFLAKE.id] })],
    [/^GET \/v1\/ids\/snowflake\/./, () => SNOWFLAKE],
    [/^GET \/v1\/plans$/, () => list(PLANS)],
    [/\/events$/, () => ({ items: EVENTS, next_cursor: null })],
    [/^GET \/v1\/(plans|tenants)\/[^/]+\/tasks$/, () => list(TASKS)],
    [/^GET \/v1\/plans\/./, () => PLAN],
    [/^GET \/v1\/tasks\/[^/]+\/checkpoints$/, () => list(CHECKPOINTS)],
    [/^(GET|POST) \/v1\/tasks\/./, () => TASK],
    [/^GET \/v1\/tenants\/./, () => TENANT],
    [/^GET \/v1\/leases$/, () => list(LEASES)],
    [/^GET \/v1\/leases\/./, () => LEASES[0]],
    [/^GET \/v1\/audit$/, () => list(AUDIT)],
];

/** Answers the page's requests in the daemon's place: with a refusal where nobody said what. */
async function answer(route: Route): Promise<void> {
    const request = route.request();
    const { pathname, searchParams } = new URL(request.url());
    const file = pathname === '/' ? 'index.html' : /^\/assets\/([\w.]+)$/.exec(pathname)?.[1];
    if (file !== undefined) {
        const type = { html: 'text/html', css: 'text/css', js: 'text/javascript', svg: 'image/svg+xml' }[file.split('.').at(-1)!];
        return route.fulfill({ contentType: type, body: readFileSync(join(DIST, file)) });
    }
    // No event ever comes.
    if (/^\/v1\/(jobs\/[^/]+\/)?events$/.test(pathname)) return route.fulfill({ status: 204 });
    const asked = `${request.method()} ${decodeURIComponent(pathname)}`;
    for (const [of, give] of ANSWERS) {
        const found = of.exec(asked);
        const json = found ? give(found) : undefined;
        if (json !== undefined) return route.fulfill({ json: searchParams.has('cursor') ? { ...json, next_cursor: null } : json });
    }
    return route.fulfill({ status: 404, json: { code: 'not_found', detail: wide(400), status: 404, request_id: UUID } });
}

/** Opens a page of the dashboard, with no daemon behind it. What a test routes itself goes before. */
export async function open(page: Page, address: string): Promise<void> {
    await page.context().route(`${ORIGIN}/**`, answer);
    await page.goto(`${ORIGIN}/${address}`);
}

/** The pages, each with texts that it shows once it has all answers, and the actions that it offers. */
export const PAGES: [name: string, address: string, texts: string[], actions: string[]][] = [
    ['overview', '#/', ['is paused', 'snowflakes', '(this one)', 'PENDING'], ['Resume']],
    ['jobs', '#/jobs', ['DISPATCHED'], ['Dismiss all']],
    ['jobs by filter', `#/jobs?kind=${wide(64)}&pool=${POOL}&tenant=${ID}&session=${ID}`, ['DISPATCHED'], ['Cancel all', 'Delete all']],
    ['dead jobs', `#/jobs?dead=true&kind=${wide(64)}&tenant=${ID}`, ['DISPATCHED'], ['Retry all']],
    ['job that waits', jobPage('waits'), ['owner elsewhere', 'traceparent'], []],
    ['job that is dispatched', jobPage('dispatched'), ['DISPATCHED', 'traceparent'], []],
    ['job that runs', jobPage('running'), ['RUNNING', 'traceparent'], ['Cancel job']],
    ['dead job', jobPage('dead'), ['dead', 'traceparent'], ['Dismiss job']],
    ['dismissed job', jobPage('dismissed'), ['dismissed', 'traceparent'], []],
    ['job that was retried', jobPage('retried'), ['retried as', 'traceparent'], ['Retry job', 'Delete job']],
    ['job of a stage', jobPage('stage'), [`of a plan, task ${NAME}`], []],
    ['bulk operations', '#/bulk', ['CANCELLING'], []],
    ['bulk operation', `#/bulk/${BULKS.find(({ filter, matched }) => filter === CONDITIONS && matched === MANY)!.id}`, ['per second at most'], ['Cancel operation']],
    ['sessions', '#/sessions', ['closed'], []],
    ['session', `#/sessions/${ID}`, ['last number', 'DISPATCHED'], ['Close session']],
    ['nodes', '#/nodes', ['draining', 'is paused', 'waiting'], ['Drain', 'Undrain', 'Pause', 'Change pause']],
    ['nodes explained', '#/nodes?requires=gpu', ['would go to', 'draining', 'is paused'], []],
    ['node', `#/nodes/${ID}`, ['held by'], []],
    ['signers', '#/signers', ['recovering'], []],
    ['signer', `#/signers/${ID}`, ['first nonce', 'RELEASED'], ['Confirm next nonce', 'Change policy', 'Resolve']],
    ['ids', '#/ids', ['9,223,372,036,854,775,807'], []],
    ['plans', '#/plans', ['ATTENTION'], []],
    ['plan', `#/plans/${UUID}`, ['Needs a person', `${ID} / ${NAME}`, 'PENDING'], ['Resume plan', 'Cancel plan']],
    ['task', `#/tasks/${UUID}`, ['place in the plan', 'version', 'stage interrupted'], ['Resume task', 'Cancel task', 'Resolve']],
    ['tenant', `#/tenants/${ID}`, ['newest task', 'INTERRUPTED'], ['Break lock']],
    ['cluster', '#/cluster', ['(this one)', 'Change to basic', 'expired'], ['Change to basic']],
    ['lease', `#/leases/signer:${ID}`, ['fencing token', 'holds the lease'], []],
    ['audit', '#/audit', ['before:'], []],
    ['job that is not kept', `#/jobs/${UUID}`, ['not_found'], []],
    ['no page', `#/${ID}`, ['No such page'], []],
];

function jobPage(name: string): string {
    return `#/jobs/${JOBS[name]!.id}`;
}
