// One job: where it is, what was tried, why it waits; cancel, retry, dismiss and delete.

import { useRef, useState } from 'preact/hooks';
import { get, path, send } from '../api';
import { useCan } from '../caller';
import { between, length, short } from '../format';
import { usePoll, useSoon, useStream } from '../live';
import { go, link } from '../router';
import type { Job } from '../shapes';
import { Action, Ago, Badge, Card, Empty, Facts, Found, Id, Json, Maybe, Table, When } from '../ui';

/** What the stream has told, each with the number of its event: the job, and its progress since. */
type Streamed = { job?: Partial<Job>; jobIn: number; progress?: Job['progress']; progressIn: number };

export function JobPage({ id }: { id: string }) {
    // How many events were heard, when the last one was, and how many of them an answer has.
    const events = useRef({ count: 0, at: -Infinity, known: 0 });
    const [heard, setHeard] = useState<Streamed>({ jobIn: 0, progressIn: 0 });
    // An answer has all that was heard before it was asked for. One under way at an event may be older, so what was heard stays.
    const polled = usePoll(`job ${id}`, async (signal) => {
        const { count, at, known } = events.current;
        const job = await get<Job>(path('/v1/jobs', id), {}, signal, count > known ? performance.now() : at);
        events.current.known = count;
        return { job, knows: count };
    });
    const refreshSoon = useSoon(polled.refresh);
    const isOver = polled.data?.job.state === 'FINISHED';
    const isLive = useStream(`${path('/v1/jobs', id)}/events`, ({ event, data }) => {
        if (event !== 'job' && event !== 'progress') return;
        events.current.at = performance.now();
        const count = (events.current.count += 1);
        if (event === 'job') {
            setHeard({ job: data as Partial<Job>, jobIn: count, progressIn: 0 });
            if ((data as Job).state !== polled.data?.job.state) refreshSoon();
        } else {
            setHeard((before) => ({ ...before, progress: data as Job['progress'], progressIn: count }));
        }
    }, isOver);
    const current = ({ job, knows }: { job: Job; knows: number }): Job => ({
        ...job,
        ...(heard.jobIn > knows ? heard.job : {}),
        ...(heard.progressIn > knows ? { progress: heard.progress ?? null } : {}),
    });
    return (
        <>
            <p class="crumbs"><a href={link(['jobs'])}>Jobs</a></p>
            <h1><span class="id">{id}</span></h1>
            <Found of={polled}>{(found) => <Shown job={current(found)} isLive={isLive} refresh={polled.refresh} />}</Found>
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
                {job.dismissed_at ? <Badge of="dismissed" /> : null}
                {job.kind ? <a href={link(['jobs'], { kind: job.kind })}><b>{job.kind}</b></a> : null}
                {job.retry_of ? <span>retry of <Id to={['jobs', job.retry_of]} id={job.retry_of} label={short(job.retry_of)} /></span> : null}
                {job.retried_as ? <span>retried as <Id to={['jobs', job.retried_as]} id={job.retried_as} label={short(job.retried_as)} /></span> : null}
                {percent !== undefined && job.state === 'RUNNING' ? <progress max={100} value={percent} aria-label="Progress">{percent} %</progress> : null}
                {job.progress?.note && job.state === 'RUNNING' ? <span class="aside">{job.progress.note}</span> : null}
                {isLive ? <span class="aside">events are streamed</span> : null}
                <span class="actions">
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
                                run: async (_values, key) => {
                                    const made = await send<{ id: string }>('POST', `${path('/v1/jobs', job.id)}/retry`, undefined, key);
                                    go(['jobs', made.id]);
                                },
                            }}
                        />
                    ) : null}
                    {mayChange && job.dead ? (
                        <Action
                            done={refresh}
                            ask={{
                                title: 'Dismiss job',
                                about: 'The job need not be retried: it keeps its outcome, and is not dead any more.',
                                run: () => send('POST', `${path('/v1/jobs', job.id)}/dismiss`),
                            }}
                        />
                    ) : null}
                    {mayChange && job.state === 'FINISHED' ? (
                        <Action
                            ask={{
                                title: 'Delete job',
                                about: 'The job is forgotten at once, with its payload, its result and its attempts.',
                                danger: true,
                                run: async () => {
                                    await send('DELETE', path('/v1/jobs', job.id));
                                    go(['jobs']);
                                },
                            }}
                        />
                    ) : null}
                </span>
            </div>
            {job.error ? <div class="trouble"><b>Error</b> {job.error}</div> : null}
            {job.state === 'CREATED' ? <WhyItWaits job={job} /> : null}
            <Timeline job={job} />
            <div class="columns">
                <Card title="Job">
                    <Facts
                        of={[
                            ['kind', job.kind],
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
                            ['dismissed', job.dismissed_at ? <When at={job.dismissed_at} /> : null],
                            ['traceparent', job.traceparent ? <span class="id">{job.traceparent}</span> : null],
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
                                { head: 'state', cell: (it) => <><Badge of={it.state} /><small class="under"><When at={it.at} /></small></> },
                                { head: 'reason', class: 'text', cell: (it) => <Maybe>{it.reason}</Maybe> },
                                { head: 'at', class: 'num wide', cell: (it) => <When at={it.at} /> },
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

/** What to do about a reason, where the page can say it. */
function Remedy({ job, reason }: { job: Job; reason: string }) {
    switch (reason) {
        case 'held':
            return <>Somebody must decide about its plan, at <a href={link(['plans'])}>Plans and tenants</a>.</>;
        case 'session_order':
            return job.session ? <>Look at the jobs of <a href={link(['sessions', job.session])}>its session</a>.</> : null;
        case 'pool_paused':
            return <>Pools are resumed at <a href={link(['nodes'])}>Nodes and pools</a>.</>;
        case 'no_node':
        case 'labels':
        case 'no_free_slot':
        case 'draining':
        case 'not_ready':
            return <><a href={link(['nodes'], needs(job))}>Nodes and pools</a> shows each node, and which one a job like this would get.</>;
        case 'owner_elsewhere':
        case 'no_owner':
            return <>Look at the instances at <a href={link(['cluster'])}>Cluster</a>.</>;
        default:
            return null;
    }
}

/** What the job requires of a node, as the form at the nodes takes it from the address. */
function needs(job: Job): Record<string, string | undefined> {
    return { pool: job.pool ?? undefined, requires: job.requires.join(', '), route: job.route ? `${job.route.source}:${job.route.target}` : undefined };
}

function WhyItWaits({ job }: { job: Job }) {
    const waits = job.waiting_for;
    return (
        <section class="waits" aria-label="Why it waits">
            <h2>Why it waits {waits ? <Badge of={waits.reason.replaceAll('_', ' ')} /> : null}</h2>
            {waits ? (
                <>
                    <p>{waits.detail}{waits.until ? <>, until <When at={waits.until} /></> : null}</p>
                    <p class="note"><Remedy job={job} reason={waits.reason} /></p>
                </>
            ) : (
                <p>The instance that answers cannot tell at the moment.</p>
            )}
        </section>
    );
}
