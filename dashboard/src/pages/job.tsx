// One job: where it is, what was tried, why it waits; cancel, retry, dismiss and delete.

import { useRef, useState } from 'preact/hooks';
import { get, path, send, withQuery } from '../api';
import { useCaller, useCan } from '../caller';
import { between, length } from '../format';
import { usePoll, useSoon, useStream } from '../live';
import { go, link } from '../router';
import type { Job, List, Task } from '../shapes';
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
            {polled.error?.status === 404 ? (
                <p class="note">
                    No job with this id is kept, or this token does not see it. A finished job goes when somebody deletes it, or when it was kept
                    for <code>jobs.retention_ms</code>. The task of a stage stays, at <a href={link(['plans'])}>Plans and tenants</a>.
                </p>
            ) : null}
            <Found of={polled}>{(found) => <Shown job={current(found)} isLive={isLive} refresh={polled.refresh} />}</Found>
        </>
    );
}

/** A stage's lane is named after its plan. */
const PLAN_LANE = 'plan:';
const TASK_MS = 60_000;

/** The plan whose stage a job is, and its task, if that is among the newest of the tenant. */
type StageOf = { plan: string; task: Task | undefined };

function useStage({ lane, tenant }: Job): StageOf | undefined {
    const plan = lane.startsWith(PLAN_LANE) ? lane.slice(PLAN_LANE.length) : undefined;
    const key = plan === undefined || tenant === null ? undefined : `task of ${plan} for ${tenant}`;
    // No two tasks of a plan are for one tenant.
    const { data: task } = usePoll(key, async (signal) => {
        const { items } = await get<List<Task>>(`${path('/v1/tenants', tenant!)}/tasks`, { limit: 100 }, signal);
        return items.find((task) => task.plan === plan);
    }, TASK_MS);
    return plan === undefined ? undefined : { plan, task };
}

function StageLine({ job, of: { plan, task } }: { job: Job; of: StageOf }) {
    const name = task?.stages.find((stage) => stage.job === job.id)?.name;
    return (
        <span>
            stage {name ? <><b>{name}</b> </> : null}of <a href={link(['plans', plan])}>a plan</a>
            {task ? <>, task <a href={link(['tasks', task.id])}>{task.name ?? task.tenant}</a></> : null}
        </span>
    );
}

function Shown({ job, isLive, refresh }: { job: Job; isLive: boolean; refresh: () => void }) {
    const mayChange = useCan('submit');
    const percent = job.progress?.percent;
    const stage = useStage(job);
    // Where people act on the whole task: its page, or its plan's.
    const named = <span class="id">{job.id}</span>;
    const taskPage = stage === undefined ? '' : stage.task ? link(['tasks', stage.task.id]) : link(['plans', stage.plan]);
    return (
        <>
            <div class="bar">
                <Badge of={job.outcome ?? job.state} />
                {job.outcome ? <span class="aside">{job.state}</span> : null}
                {job.dead ? <Badge of="dead" /> : null}
                {job.dismissed_at ? <Badge of="dismissed" /> : null}
                {job.kind ? <a href={link(['jobs'], { kind: job.kind })}><b>{job.kind}</b></a> : null}
                {stage ? <StageLine job={job} of={stage} /> : null}
                {job.retry_of ? <span>retry of <Id to={['jobs', job.retry_of]} id={job.retry_of} isBrief /></span> : null}
                {job.retried_as ? <span>retried as <Id to={['jobs', job.retried_as]} id={job.retried_as} isBrief /></span> : null}
                {percent !== undefined && job.state === 'RUNNING' ? (
                    <span class="meter"><progress max={100} value={percent} aria-label="Progress" /><span>{Number(Number(percent).toFixed(1))} %</span></span>
                ) : null}
                {job.progress?.note && job.state === 'RUNNING' ? <span class="aside">{job.progress.note}</span> : null}
                {isLive ? <span class="aside">events are streamed</span> : null}
                <span class="actions">
                    {mayChange && job.state !== 'FINISHED' ? (
                        <Action
                            done={refresh}
                            ask={{
                                title: 'Cancel job',
                                about: (
                                    <>
                                        <p>The job {named} ends as cancelled. Fencepost tells a node that runs it to stop.</p>
                                        {stage ? (
                                            <p>
                                                It is a stage of a plan. Its task becomes FAILED, unless the task is interrupted or being cancelled
                                                already. To end the task as CANCELLED, <a href={taskPage}>cancel the task</a> instead.
                                            </p>
                                        ) : null}
                                    </>
                                ),
                                danger: true,
                                run: () => send('POST', `${path('/v1/jobs', job.id)}/cancel`),
                            }}
                        />
                    ) : null}
                    {mayChange && stage && job.state === 'FINISHED' && job.outcome !== 'succeeded' ? <a href={taskPage}>Retry its task</a> : null}
                    {mayChange && !stage && job.state === 'FINISHED' ? (
                        <Action
                            done={refresh}
                            ask={{
                                title: 'Retry job',
                                about: job.retried_as ? (
                                    <>
                                        <p>The job {named} was retried already, as <Id to={['jobs', job.retried_as]} id={job.retried_as} isBrief />.</p>
                                        <p>Another job with the same payload is submitted. This one stays as it is, and names that one from then on.</p>
                                    </>
                                ) : (
                                    <>A new job with the same payload as {named} is submitted. That one stays as it is, and names the new one.</>
                                ),
                                run: async (_values, key) => {
                                    // Where the dialog names no retry, one that somebody else has begun since is to be the only one.
                                    const once = job.retried_as ? undefined : true;
                                    const target = withQuery(`${path('/v1/jobs', job.id)}/retry`, { once });
                                    const made = await send<{ id: string }>('POST', target, undefined, key);
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
                                about: <>The job {named} need not be retried: it keeps its outcome, and is not dead any more.</>,
                                run: () => send('POST', `${path('/v1/jobs', job.id)}/dismiss`),
                            }}
                        />
                    ) : null}
                    {mayChange && job.state === 'FINISHED' ? (
                        <Action
                            ask={{
                                title: 'Delete job',
                                about: (
                                    <>
                                        <p>The job {named} is forgotten at once, with its payload, its result and its attempts.</p>
                                        {stage ? (
                                            <p>It is a stage of a plan: its task stays as it is, and goes on naming this job, which nobody can look at then.</p>
                                        ) : null}
                                    </>
                                ),
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
            {job.error ? <div class="trouble"><b>{job.state === 'FINISHED' ? 'Error' : 'Error of an earlier attempt'}</b> {job.error}</div> : null}
            {job.state === 'CREATED' ? <WhyItWaits job={job} taskPage={taskPage} /> : null}
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
                            ['plan', stage ? <Id to={['plans', stage.plan]} id={stage.plan} /> : null],
                            ['task', stage?.task ? <Id to={['tasks', stage.task.id]} id={stage.task.id} /> : null],
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
                                { head: 'node', class: 'bare', cell: (it) => <Id to={['nodes', it.node]} id={it.node} /> },
                                { head: 'state', class: 'bare', cell: (it) => <><Badge of={it.state} /><small class="under"><When at={it.at} /></small></> },
                                { head: 'reason', class: 'text bare', cell: (it) => <Maybe>{it.reason}</Maybe> },
                                { head: 'at', class: 'num wide', cell: (it) => <When at={it.at} /> },
                            ]}
                        />
                    )}
                </Card>
            </div>
            <div class="columns">
                <Card title="Payload">{job.payload === undefined ? <Empty>Loading…</Empty> : <Json of={job.payload} label="Payload" />}</Card>
                <Card title="Result">
                    {job.state !== 'FINISHED' ? (
                        <Empty>The job has no result yet.</Empty>
                    ) : job.outcome === 'succeeded' ? (
                        <Json of={job.result ?? null} label="Result" />
                    ) : (
                        <Empty>The job ended without a result.</Empty>
                    )}
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
    // How long a job has been with its node is what tells one that is stuck.
    const newest = job.state === 'DISPATCHED' || job.state === 'RUNNING' ? past.at(-1)![0] : undefined;
    return (
        <Card title="Timeline">
            <ol class="timeline">
                {past.map(([name, at, tone], index) => (
                    <li key={name} class={tone}>
                        <b>{name}</b>
                        <When at={at} />
                        <small>
                            {index > 0 ? <>after {between(past[index - 1]![1], at)}</> : <Ago at={at} />}
                            {name === newest ? <>, <Ago at={at} /></> : null}
                        </small>
                    </li>
                ))}
            </ol>
        </Card>
    );
}

/** What to do about a reason, where the page can say it. */
function Remedy({ job, reason, taskPage }: { job: Job; reason: string; taskPage: string }) {
    const { sees_everything } = useCaller();
    switch (reason) {
        case 'held':
            return <>Somebody must decide about <a href={taskPage}>its task</a>.</>;
        case 'session_order':
            return job.session ? <>Look at the jobs of <a href={link(['sessions', job.session])}>its session</a>.</> : null;
        case 'pool_paused':
            return <>Pools are resumed at <a href={link(['nodes'])}>Nodes and pools</a>.</>;
        case 'no_node':
        case 'labels':
        case 'no_free_slot':
        case 'draining':
        case 'not_ready':
            if (!sees_everything) return <><a href={link(['nodes'])}>Nodes and pools</a> shows the nodes that this token sees.</>;
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

function WhyItWaits({ job, taskPage }: { job: Job; taskPage: string }) {
    const waits = job.waiting_for;
    return (
        <section class="waits" aria-label="Why it waits">
            <h2>Why it waits {waits ? <Badge of={waits.reason.replaceAll('_', ' ')} /> : null}</h2>
            {waits ? (
                <>
                    <p>{waits.detail}{waits.until ? <>, until <When at={waits.until} /></> : null}</p>
                    <p class="note"><Remedy job={job} reason={waits.reason} taskPage={taskPage} /></p>
                </>
            ) : (
                <p>The instance that answers cannot tell at the moment.</p>
            )}
        </section>
    );
}
