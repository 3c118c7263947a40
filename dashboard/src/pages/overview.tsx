// How the cluster is: what waits longest first, then counts, rates, charts, and who runs.

import type { ComponentChildren } from 'preact';
import { get } from '../api';
import { useCaller } from '../caller';
import { Chart } from '../chart';
import { atStep, count, counted, length, rate, TIME_STEPS } from '../format';
import { useNow, usePoll, type Polled } from '../live';
import { link } from '../router';
import { history, recall, sample, series } from '../samples';
import type { Cluster, Outcome, PoolStats, Ready, Stats } from '../shapes';
import { Ago, Badge, Card, Cut, Empty, Facts, Found, Table, Trouble, When } from '../ui';
import { Paused, usePools } from './pools';

const SLOW_MS = 60_000;
/** Older counts say how old they are: the daemon counts every few seconds, but where it cannot, or a count takes long. */
const OLD_MS = 15_000;
const OUTCOMES: Outcome[] = ['succeeded', 'failed', 'timed_out', 'cancelled'];

export function Overview() {
    const { sees_everything } = useCaller();
    const stats = usePoll(sees_everything ? 'stats' : undefined, async (signal) => {
        const found = await get<Stats>('/v1/stats', {}, signal);
        sample(found);
        recall(found);
        return found;
    });
    // Statistics come from memory and show at once that a configured pool is paused; why it is must be asked for.
    const pools = usePools(stats.data?.pools.some((pool) => pool.paused) ? 10_000 : 30_000);
    const cluster = usePoll('cluster', (signal) => get<Cluster>('/v1/cluster', {}, signal));
    const ready = usePoll('readyz', (signal) => get<Ready>('/readyz', {}, signal), 5_000);
    return (
        <>
            <h1>Overview</h1>
            {pools.data ? <Paused of={pools.data.paused} done={pools.refresh} /> : null}
            {sees_everything ? (
                <Found of={stats}>{(found) => <Figures stats={found} answeredAt={stats.answeredAt} />}</Found>
            ) : (
                <Empty>
                    This token sees some names only, and statistics count everything. Look at <a href={link(['jobs'])}>jobs</a> or{' '}
                    <a href={link(['plans'])}>plans</a> instead.
                </Empty>
            )}
            <div class="columns">
                <Card title="Instances" aside={cluster.data ? <span class="aside">mode {cluster.data.mode}</span> : null}>
                    <Found of={cluster}>{(found) => <Instances of={found} />}</Found>
                </Card>
                <Health of={ready} />
            </div>
        </>
    );
}

/** The newest checks: of the refusal, if the instance is not ready. */
function Health({ of: { data, error } }: { of: Polled<Ready> }) {
    const checks = error ? error.checks : data?.checks;
    return (
        <Card title="Health of this instance" aside={data && !error ? <Badge of={data.status} /> : null}>
            <Trouble error={error} title={error?.status === 0 ? 'No answer' : 'Not ready'} />
            {checks ? (
                <Facts of={Object.entries(checks).map(([name, check]) => [name, <><Badge of={check.status} /> {check.detail}</>])} />
            ) : null}
        </Card>
    );
}

/** How old counts are that are not of a moment ago. */
function since(countedMsAgo: number): string | undefined {
    return countedMsAgo > OLD_MS ? `counted ${length(countedMsAgo)} ago` : undefined;
}

function Figures({ stats, answeredAt }: { stats: Stats; answeredAt: number }) {
    const { jobs, delayed, oldest_waiting_ms: oldest, slots } = stats;
    // The last answer stays while the daemon gives no other, and what it counts grows older.
    const answeredMsAgo = Math.max(0, useNow() - answeredAt);
    const ofAnswer = since(answeredMsAgo);
    const ofJobs = since(stats.counted_ms_ago + answeredMsAgo);
    const ofPlans = since(stats.plans_counted_ms_ago + answeredMsAgo);
    const { finished_counted_ms_ago: finishedMsAgo } = stats;
    const ofFinished = finishedMsAgo === null ? 'not counted yet' : since(finishedMsAgo + answeredMsAgo);
    const isIdle = jobs.CREATED + jobs.DISPATCHED + jobs.RUNNING === 0 && jobs.FINISHED === 0;
    return (
        <>
            <div class="figures">
                <Figure name="Oldest waiting job" to={link(['jobs'], { state: 'CREATED' })} tone={oldest !== null && oldest > SLOW_MS ? 'warn' : undefined} under={ofJobs} lead>
                    {oldest === null ? 'none waits' : length(oldest)}
                </Figure>
                <Figure name="Waiting" to={link(['jobs'], { state: 'CREATED' })} under={[delayed === 0 ? undefined : `+ ${count(delayed)} delayed`, ofJobs].filter(Boolean).join(', ') || undefined}>{count(jobs.CREATED - delayed)}</Figure>
                <Figure name="Dispatched" to={link(['jobs'], { state: 'DISPATCHED' })} under={ofJobs}>{count(jobs.DISPATCHED)}</Figure>
                <Figure name="Running" to={link(['jobs'], { state: 'RUNNING' })} under={ofJobs}>{count(jobs.RUNNING)}</Figure>
                <Figure name="Finished" to={link(['jobs'], { state: 'FINISHED' })} under={ofFinished}>{jobs.FINISHED === null ? '–' : count(jobs.FINISHED)}</Figure>
                <Failures history={stats.history} under={ofAnswer} />
                <Figure name="Slots in use" to={link(['nodes'])} under={ofAnswer}>{count(slots.used)} <small>of {count(slots.all)}</small></Figure>
            </div>
            {isIdle ? (
                <Empty>
                    <b>No jobs yet.</b> Start a worker with <code>fencepost node --exec cat</code>, then submit a job with{' '}
                    <code>echo '{'{"hello":"world"}'}' | fencepost submit --wait -</code>.
                </Empty>
            ) : null}
            <div class="charts">
                <Chart
                    title="Unfinished jobs"
                    unit={(value) => count(Math.round(value))}
                    axis={(value) => (Number.isInteger(value) ? count(value) : '')}
                    times={series.times}
                    length={series.times.at(-1) ?? 0}
                    lines={[
                        { label: 'waiting', color: '--wait', values: series.waiting },
                        { label: 'dispatched', color: '--sent', values: series.dispatched },
                        { label: 'running', color: '--run', values: series.running },
                    ]}
                />
                <Chart
                    title="Oldest waiting job"
                    unit={(value) => (value === 0 ? '0' : length(value * 1_000))}
                    axis={atStep}
                    steps={TIME_STEPS}
                    times={series.times}
                    length={series.times.at(-1) ?? 0}
                    lines={[{ label: 'age', color: '--warn', values: series.oldest }]}
                />
                <Chart
                    title="Jobs per second"
                    unit={rate}
                    times={history.times}
                    length={history.times.at(-1) ?? 0}
                    lines={[
                        { label: 'accepted', color: '--sent', values: history.accepted },
                        { label: 'succeeded', color: '--good', values: history.succeeded },
                        { label: 'failed', color: '--bad', values: history.failed },
                    ]}
                />
            </div>
            <div class="columns">
                <Card title="Jobs per second" aside={<Counting stats={stats} under={ofAnswer} />}>
                    <Silent of={stats.instances} />
                    <Rates stats={stats} />
                </Card>
                <Card title="Plans and tasks" aside={ofPlans ? <span class="aside">{ofPlans}</span> : null}>
                    <Statuses name="Plans" of={stats.plans} to={(status) => link(['plans'], { status })} />
                    <Statuses name="Tasks of plans that are not over" of={stats.tasks} />
                    {stats.unknown_stages > 0 ? (
                        <p class="note warn">
                            {counted(stats.unknown_stages, 'stage is', 'stages are')} UNKNOWN: somebody must say what was done.{' '}
                            <a href={link(['plans'], { status: 'ATTENTION' })}>Show the plans that need a person.</a>
                        </p>
                    ) : null}
                </Card>
            </div>
            <Card title="Pools" aside={<span class="aside">counted {length(stats.counted_ms_ago + answeredMsAgo)} ago</span>}>
                <Pools of={stats.pools} />
            </Card>
        </>
    );
}

function Figure(props: { name: string; to: string; tone?: string | undefined; lead?: boolean; under?: string | undefined; children: ComponentChildren }) {
    return (
        <a class={`figure ${props.lead ? 'lead' : ''} ${props.tone ?? ''}`} href={props.to}>
            <span>{props.name}</span>
            <b>{props.children}</b>
            {props.under === undefined ? null : <small>{props.under}</small>}
        </a>
    );
}

/**
 * The jobs that failed or timed out within the 15 minutes of the history, each number with the way to such jobs. How many
 * dead jobs are kept is not counted anywhere, so the way to them has no number.
 */
function Failures({ history: { failed, timed_out }, under }: { history: Stats['history']; under: string | undefined }) {
    const sum = (steps: number[]) => steps.reduce((all, one) => all + one, 0);
    const [failures, late] = [sum(failed), sum(timed_out)];
    return (
        <div class={`figure failures ${failures + late > 0 ? 'bad' : ''}`}>
            <span>Failed, last 15 min</span>
            <a href={link(['jobs'], { outcome: 'failed' })}><b>{count(failures)}</b><span class="unseen"> failed</span></a>
            <small>
                {late > 0 ? <><a href={link(['jobs'], { outcome: 'timed_out' })}>{count(late)} timed out</a>, </> : null}
                <a href={link(['jobs'], { dead: 'true' })}>dead jobs</a>
                {under === undefined ? null : `, ${under}`}
            </small>
        </div>
    );
}

/** Whose jobs the rates count, and since when. */
function Counting({ stats: { instances, history_since: since }, under }: { stats: Stats; under: string | undefined }) {
    const answering = instances.filter((one) => one.problem === undefined).length;
    return <span class="aside">of {counted(answering, 'instance')}{since ? <>, since <When at={since} /></> : null}{under === undefined ? null : `, ${under}`}</span>;
}

/** The instances whose jobs the rates are without. */
function Silent({ of }: { of: Stats['instances'] }) {
    return (
        <>
            {of.map(({ instance, problem }) =>
                problem === undefined ? null : <p key={instance} class="note warn">Without instance <span class="id">{instance}</span>: {problem}.</p>,
            )}
        </>
    );
}

function Rates({ stats }: { stats: Stats }) {
    const spans = ['1m', '5m', '15m'] as const;
    const rows: [string, (span: (typeof spans)[number]) => number][] = [
        ['accepted', (span) => stats.rates[span].accepted_per_second],
        ...OUTCOMES.map((outcome): [string, (span: (typeof spans)[number]) => number] => [
            outcome,
            (span) => stats.rates[span].finished_per_second[outcome],
        ]),
    ];
    return (
        <Table
            label="Jobs per second"
            rows={rows}
            id={([name]) => name}
            columns={[
                { head: 'jobs', cell: ([name]) => name.replace('_', ' ') },
                ...spans.map((span) => ({
                    head: `${span.slice(0, -1)} min`,
                    class: 'num',
                    cell: ([, of]: (typeof rows)[number]) => rate(of(span)),
                })),
            ]}
            fits="rates"
        />
    );
}

function Statuses({ name, of, to }: { name: string; of: Record<string, number>; to?: (status: string) => string }) {
    return (
        <div class="statuses">
            <h3>{name}</h3>
            <ul>
                {Object.entries(of).map(([status, value]) => {
                    const shown = <><Badge of={status} /> <b>{count(value)}</b></>;
                    return <li key={status} class={value === 0 ? 'zero' : undefined}>{to ? <a href={to(status)}>{shown}</a> : shown}</li>;
                })}
            </ul>
        </div>
    );
}

function Pools({ of }: { of: PoolStats[] }) {
    const failing = (pool: PoolStats) => {
        const minute = pool.rates['1m'].finished_per_second;
        return minute.failed + minute.timed_out;
    };
    return (
        <Table
            label="Pools"
            rows={[...of].sort((a, b) => (b.oldest_waiting_ms ?? -1) - (a.oldest_waiting_ms ?? -1))}
            id={(pool) => pool.pool ?? ''}
            columns={[
                {
                    head: 'pool',
                    class: 'own',
                    cell: (pool) => (
                        <>{pool.pool === null ? <i>no pool named</i> : <a href={link(['jobs'], { pool: pool.pool })}>{pool.pool}</a>} {pool.paused ? <Badge of="paused" /> : null}</>
                    ),
                },
                { head: 'oldest', class: 'num', cell: (pool) => (pool.oldest_waiting_ms === null ? '–' : length(pool.oldest_waiting_ms)) },
                { head: 'waiting', class: 'num', cell: (pool) => count(pool.jobs.CREATED - pool.delayed) },
                { head: 'delayed', class: 'num wide', cell: (pool) => count(pool.delayed) },
                { head: 'dispatched', class: 'num wide', cell: (pool) => count(pool.jobs.DISPATCHED) },
                { head: 'running', class: 'num', cell: (pool) => count(pool.jobs.RUNNING) },
                { head: 'finished', class: 'num wide', cell: (pool) => (pool.jobs.FINISHED === null ? '–' : count(pool.jobs.FINISHED)) },
                { head: 'accepted/s', class: 'num wide', cell: (pool) => rate(pool.rates['1m'].accepted_per_second) },
                { head: 'failed/s', class: 'num', cell: (pool) => rate(failing(pool)) },
            ]}
        />
    );
}

export function Instances({ of }: { of: Cluster }) {
    return (
        <Table
            label="Instances"
            rows={of.instances}
            id={(instance) => instance.instance_id}
            columns={[
                {
                    head: 'instance',
                    class: 'own',
                    cell: (it) => <span class="id whole">{it.instance_id}{it.instance_id === of.instance ? <em> (this one)</em> : null}</span>,
                },
                { head: 'resources', class: 'num', cell: (it) => count(it.resources) },
                { head: 'version', cell: (it) => it.version },
                { head: 'bus', class: 'wide', cell: (it) => <span class="id"><Cut text={it.bus} /></span> },
                { head: 'started', class: 'wide spare', cell: (it) => <Ago at={it.started_at} /> },
                { head: 'state', class: 'bare', cell: (it) => <Badge of={it.on_ring === false ? 'draining' : it.bus_up === false ? 'degraded' : 'live'} /> },
            ]}
        />
    );
}
