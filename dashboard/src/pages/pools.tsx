// Pools: what waits for each, and its pause.

import { get, path, send } from '../api';
import { useCaller, useCan } from '../caller';
import { daemonTime } from '../clock';
import { count, length } from '../format';
import { usePoll, type Polled } from '../live';
import { link } from '../router';
import type { Pool, PoolPause, Pools, PoolStats, Stats } from '../shapes';
import { Action, Ago, Badge, Card, Empty, Found, Maybe, Table, When } from '../ui';

/** The pool of all nodes while none is configured. */
const DEFAULT: Pool = { name: 'default' };
const MINUTE_MS = 60_000;
const PAUSE_MINUTES_MAX = 30 * 24 * 60;

/** A pool; or without a name, the jobs that name none. */
type Row = Omit<Pool, 'name'> & { name: string | null; pause: PoolPause | undefined; stats: PoolStats | undefined };

/** The pools and their pauses. The ledger is read for each answer, so they are asked for seldom. */
export function usePools(everyMs = 10_000): Polled<Pools> {
    return usePoll('pools', (signal) => get<Pools>('/v1/config/pools', {}, signal), everyMs);
}

export function PoolsCard() {
    const pools = usePools();
    const { sees_everything } = useCaller();
    const stats = usePoll(sees_everything ? 'stats of pools' : undefined, (signal) => get<Stats>('/v1/stats', {}, signal), 5_000);
    const isAdmin = useCan('admin');
    const num = (head: string, of: (stats: PoolStats) => string) => ({ head, class: 'num', cell: (pool: Row) => <Maybe>{pool.stats ? of(pool.stats) : null}</Maybe> });
    return (
        <Card title="Pools" aside={pools.data ? <span class="aside">version {pools.data.version}</span> : null}>
            <Found of={pools}>
                {(found) => (
                    <>
                        <Paused of={found.paused} done={pools.refresh} />
                        {found.pools.length > 0 ? null : sees_everything ? (
                            <Empty>No pool is configured: any node takes any job whose labels it has. To make pools, edit what <code>fencepost pool show --json</code> prints, and give it to <code>fencepost pool set -f FILE</code>.</Empty>
                        ) : (
                            <Empty>No pool is configured that this token sees.</Empty>
                        )}
                        {found.pools.length === 0 && !sees_everything ? null : (
                            <Table
                                label="Pools"
                                rows={rows(found, stats.data)}
                                id={(pool) => pool.name ?? ''}
                                columns={[
                                    { head: 'pool', class: 'own', cell: (pool) => <><Name of={pool} isAll={found.pools.length === 0} /> {pool.pause ? <Badge of="paused" /> : null}</> },
                                    ...(sees_everything
                                        ? [
                                              num('oldest', ({ oldest_waiting_ms: oldest }) => (oldest === null ? '' : length(oldest))),
                                              num('waiting', ({ jobs, delayed }) => count(jobs.CREATED - delayed)),
                                          ]
                                        : []),
                                    { head: 'routes', class: 'wide', cell: (pool) => <Maybe>{pool.routes?.join(', ')}</Maybe> },
                                    { head: 'requires', class: 'wide', cell: (pool) => <Maybe>{pool.requires?.join(', ')}</Maybe> },
                                    { head: 'weight', class: 'num wide', cell: (pool) => pool.name === null ? <Maybe /> : (pool.weight ?? 1) },
                                    ...(isAdmin ? [{ head: 'action', class: 'bare', cell: (pool: Row) => pool.name === null ? null : <Pause pool={pool.name} pause={pool.pause} done={pools.refresh} /> }] : []),
                                ]}
                            />
                        )}
                    </>
                )}
            </Found>
        </Card>
    );
}

/** The configured pools, with what is known of each, and the jobs that name none. While no pool is configured, these are those of DEFAULT. */
function rows({ pools, paused }: Pools, stats: Stats | undefined): Row[] {
    const pauses = new Map(paused.map((pause) => [pause.pool, pause]));
    const counts = new Map(stats?.pools.map((of) => [of.pool, of]));
    const unnamed = counts.get(null);
    const row = (pool: Pool): Row => ({ ...pool, pause: pauses.get(pool.name), stats: counts.get(pool.name) });
    if (pools.length === 0) return [{ ...row(DEFAULT), stats: together(unnamed, counts.get(DEFAULT.name)) }];
    return [...pools.map(row), ...(unnamed ? [{ name: null, pause: undefined, stats: unnamed }] : [])];
}

/** What waits among the jobs of both. */
function together(one: PoolStats | undefined, other: PoolStats | undefined): PoolStats | undefined {
    if (one === undefined || other === undefined) return one ?? other;
    const oldest = Math.max(one.oldest_waiting_ms ?? -1, other.oldest_waiting_ms ?? -1);
    return {
        ...one,
        jobs: { ...one.jobs, CREATED: one.jobs.CREATED + other.jobs.CREATED },
        delayed: one.delayed + other.delayed,
        oldest_waiting_ms: oldest < 0 ? null : oldest,
    };
}

/** The pool, with the way to its jobs: to all jobs, if it is the pool of all nodes. */
function Name({ of: { name }, isAll }: { of: Row; isAll: boolean }) {
    if (name === null) return <i>no pool named</i>;
    return <a href={link(['jobs'], isAll ? {} : { pool: name })}>{name}</a>;
}

/** The pauses, each with its reason and its end; also those of pools that are configured no more. */
export function Paused({ of, done }: { of: PoolPause[]; done: () => void }) {
    const isAdmin = useCan('admin');
    if (of.length === 0) return null;
    return (
        <ul class="paused" aria-label="Paused pools">
            {of.map((pause) => (
                <li key={pause.pool}>
                    <span>
                        <b>{pause.pool}</b> is paused: <bdi>{pause.reason}</bdi>{' '}
                        <small>{pause.by ? `by ${pause.by}, ` : ''}<Ago at={pause.since} />, {pause.until ? <>until <When at={pause.until} /></> : 'until somebody resumes it'}</small>
                    </span>
                    {isAdmin ? <Resume pool={pause.pool} done={done} /> : null}
                </li>
            ))}
        </ul>
    );
}

function Resume({ pool, done }: { pool: string; done: () => void }) {
    return (
        <Action
            done={done}
            ask={{
                title: 'Resume',
                about: <>Jobs are dispatched to the pool <b>{pool}</b> again.</>,
                run: () => send('POST', `${path('/v1/pools', pool)}/resume`),
            }}
        />
    );
}

/** What is left of a pause that ends by itself, in whole minutes: a change of its reason leaves its end where it is. */
function minutesLeft(pause: PoolPause | undefined): string {
    if (!pause?.until) return '';
    const minutes = Math.ceil((Date.parse(pause.until) - daemonTime()) / MINUTE_MS);
    return String(Math.min(Math.max(minutes, 1), PAUSE_MINUTES_MAX));
}

function Pause({ pool, pause, done }: { pool: string; pause: PoolPause | undefined; done: () => void }) {
    return (
        <Action
            done={done}
            ask={{
                title: pause ? 'Change pause' : 'Pause',
                about: <>No job is dispatched to the pool <b>{pool}</b>; its jobs wait. Attempts that were dispatched before run on.</>,
                danger: true,
                fields: [
                    { name: 'reason', label: 'Reason', value: pause?.reason ?? '', required: true },
                    { name: 'minutes', label: 'For how many minutes', value: () => minutesLeft(pause), most: PAUSE_MINUTES_MAX, hint: 'empty: until somebody resumes the pool' },
                ],
                run: ({ reason, minutes }) =>
                    send('POST', `${path('/v1/pools', pool)}/pause`, { reason, ...(minutes ? { for_ms: Number(minutes) * MINUTE_MS } : {}) }),
            }}
        />
    );
}
