// One job: where it is, what was tried, why it waits; cancel and retry.

import { useEffect, useState } from 'preact/hooks';
import { get, path, send } from '../api';
import { useCan } from '../caller';
import { between, length } from '../format';
import { usePoll, useStream } from '../live';
import { go, link } from '../router';
import type { Job, Selection } from '../shapes';
import { Action, Ago, Badge, Card, Empty, Facts, Found, Id, Json, Maybe, Table, Trouble, When } from '../ui';

export function JobPage({ id }: { id: string }) {
    const polled = usePoll(`job ${id}`, (signal) => get<Job>(path('/v1/jobs', id), {}, signal));
    const [heard, setHeard] = useState<Partial<Job>>();
    useEffect(() => setHeard(undefined), [id, polled.data]);
    const isOver = polled.data?.state === 'FINISHED';
    const isLive = useStream(`${path('/v1/jobs', id)}/events`, ({ event, data }) => {
        if (event === 'job') {
            setHeard(data as Partial<Job>);
            if ((data as Job).state !== polled.data?.state) polled.refresh();
        } else if (event === 'progress') {
            setHeard((before) => ({ ...before, progress: data as Job['progress'] }));
        }
    }, isOver);
    return (
        <>
            <p class="crumbs"><a href={link(['jobs'])}>Jobs</a></p>
            <h1><span class="id">{id}</span></h1>
            <Found of={polled}>{(job) => <Shown job={{ ...job, ...heard }} isLive={isLive} refresh={polled.refresh} />}</Found>
        </>
    );
}

function Shown({ job, isLive, refresh }: { job: Job; isLive: boolean; refresh: () => void }) {
    const mayChange = useCan('submit');
    const percent = job.progress?.percent;
    return (
        <>
            <div class="bar">
                <Badge of={job.outcome ?? job.state} />
                {job.outcome ? <span class="aside">{job.state}</span> : null}
                {job.dead ? <Badge of="dead" /> : null}
                {percent !== undefined && job.state === 'RUNNING' ? <progress max={100} value={percent} aria-label="Progress">{percent} %</progress> : null}
                {job.progress?.note && job.state === 'RUNNING' ? <span class="aside">{job.progress.note}</span> : null}
                {isLive ? <span class="aside">events are streamed</span> : null}
                <span class="space" />
                {mayChange && job.state !== 'FINISHED' ? (
                    <Action
                        done={refresh}
                        ask={{
                            title: 'Cancel job',
                            about: 'The job ends as cancelled. A node that runs it is told to stop.',
                            danger: true,
                            run: () => send('POST', `${path('/v1/jobs', job.id)}/cancel`),
                        }}
                    />
                ) : null}
                {mayChange && job.state === 'FINISHED' ? (
                    <Action
                        done={refresh}
                        ask={{
                            title: 'Retry job',
                            about: 'A new job with the same payload is submitted. This one stays as it is, and names the new one.',
                            run: async () => {
                                const made = await send<{ id: string }>('POST', `${path('/v1/jobs', job.id)}/retry`, undefined, true);
                                go(['jobs', made.id]);
                            },
                        }}
                    />
                ) : null}
            </div>
            {job.error ? <div class="trouble"><b>Error</b> {job.error}</div> : null}
            {job.state === 'CREATED' ? <WhyItWaits job={job} /> : null}
            <Timeline job={job} />
            <div class="columns">
                <Card title="Job">
                    <Facts
                        of={[
                            ['pool', job.pool],
                            ['route', job.route ? `${job.route.source} → ${job.route.target}` : null],
                            ['requires', job.requires.join(', ')],
                            ['tenant', job.tenant ? <Id to={['tenants', job.tenant]} id={job.tenant} /> : null],
                            ['session', job.session ? <><Id to={['sessions', job.session]} id={job.session} /> (number {String(job.seq)})</> : null],
                            ['lane', <span class="id">{job.lane}</span>],
                            ['node', job.node ? <Id to={['nodes', job.node]} id={job.node} /> : null],
                            ['attempt', `${job.attempt} of ${job.max_attempts}`],
                            ['priority', job.priority],
                            ['time limit', length(job.timeout_ms)],
                            ['retry of', job.retry_of ? <Id to={['jobs', job.retry_of]} id={job.retry_of} /> : null],
                            ['retried as', job.retried_as ? <Id to={['jobs', job.retried_as]} id={job.retried_as} /> : null],
                            ...Object.entries(job.metadata).map(([name, value]): [string, string] => [`metadata ${name}`, value]),
                        ]}
                    />
                </Card>
                <Card title="Attempts">
                    {(job.attempts ?? []).length === 0 ? (
                        <Empty>{job.attempt === 0 ? 'No attempt yet.' : 'The first attempt has not failed.'}</Empty>
                    ) : (
                        <Table
                            label="Attempts"
                            rows={job.attempts ?? []}
                            id={(attempt) => `${attempt.attempt} ${attempt.at}`}
                            columns={[
                                { head: '#', cell: (it) => it.attempt },
                                { head: 'node', cell: (it) => <Id to={['nodes', it.node]} id={it.node} /> },
                                { head: 'state', cell: (it) => <Badge of={it.state} /> },
                                { head: 'reason', cell: (it) => <Maybe>{it.reason}</Maybe> },
                                { head: 'at', class: 'num', cell: (it) => <When at={it.at} /> },
                            ]}
                        />
                    )}
                </Card>
            </div>
            <div class="columns">
                <Card title="Payload">{job.payload === undefined ? <Empty>Loading…</Empty> : <Json of={job.payload} label="Payload" />}</Card>
                <Card title="Result">
                    {job.state !== 'FINISHED' ? <Empty>The job has no result yet.</Empty> : <Json of={job.result ?? null} label="Result" />}
                </Card>
            </div>
        </>
    );
}

function Timeline({ job }: { job: Job }) {
    const steps: [string, string | null, string][] = [
        ['created', job.created_at, 'wait'],
        ['due', job.run_at, 'wait'],
        ['dispatched', job.dispatched_at, 'sent'],
        ['running', job.running_at, 'run'],
        ['finished', job.finished_at, job.outcome === 'succeeded' ? 'good' : 'bad'],
    ];
    const past = steps.filter((step): step is [string, string, string] => step[1] !== null);
    past.sort((a, b) => Date.parse(a[1]) - Date.parse(b[1]));
    return (
        <Card title="Timeline">
            <ol class="timeline">
                {past.map(([name, at, tone], index) => (
                    <li key={name} class={tone}>
                        <b>{name}</b>
                        <When at={at} />
                        {index > 0 ? <small>after {between(past[index - 1]![1], at)}</small> : <small><Ago at={at} /></small>}
                    </li>
                ))}
            </ol>
        </Card>
    );
}

/** What the placement says now about a job of these needs. */
function WhyItWaits({ job }: { job: Job }) {
    const isDelayed = job.run_at !== null && Date.parse(job.run_at) > Date.now();
    const needs: Record<string, unknown> = {};
    if (job.pool !== null) needs.pool = job.pool;
    if (job.route !== null) needs.route = job.route;
    if (job.requires.length > 0) needs.requires = job.requires;
    const polled = usePoll(isDelayed ? undefined : `why ${job.id}`, () => send<Selection>('POST', '/v1/nodes/select', needs));
    return (
        <Card title="Why it waits">
            <Trouble error={polled.error} />
            {isDelayed ? <p class="note">The job is not due before <When at={job.run_at} />.</p> : null}
            {polled.data ? <Explained of={polled.data} session={job.session} /> : null}
        </Card>
    );
}

const REASONS: Record<string, string> = {
    pool: 'are in no pool that serves it',
    labels: 'lack a label or a language that it requires',
    excluded: 'were excluded',
    unreachable: 'are held by another instance that cannot be reached',
    not_ready: 'are not ready: their connection is over, or has just begun',
    draining: 'are draining',
    unhealthy: 'are unhealthy',
    full: 'have no free slot',
};

export function Explained({ of, session }: { of: Selection; session?: string | null }) {
    const reasons = Object.entries(of.rejected).filter(([, number]) => number > 0);
    return (
        <div class="explained">
            {of.node !== null ? (
                <p>
                    <span class="badge good">fits</span> A job with these needs would go to <Id to={['nodes', of.node]} id={of.node} />
                    {of.pool ? <> of the pool <b>{of.pool}</b></> : null}.
                    {session ? ' This one waits for its turn in its session.' : null}
                </p>
            ) : of.considered === 0 ? (
                <p><span class="badge warn">no node</span> No node is connected that could take it. Start one with <code>fencepost node</code>.</p>
            ) : (
                <p><span class="badge warn">no node</span> None of the {of.considered} nodes that were considered can take it now.</p>
            )}
            {reasons.length > 0 ? (
                <ul>{reasons.map(([reason, number]) => <li key={reason}><b>{number}</b> {REASONS[reason] ?? `rejected: ${reason}`}</li>)}</ul>
            ) : null}
        </div>
    );
}
