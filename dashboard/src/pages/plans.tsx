// Plans and what became of them: lists, one plan with its tasks and events.

import { useRef } from 'preact/hooks';
import { get, path, send } from '../api';
import { useCan } from '../caller';
import { count, counted, length } from '../format';
import { useList, usePoll, type Polled } from '../live';
import { go, link } from '../router';
import type { List, Plan, PlanEvent, Task } from '../shapes';
import { Action, Ago, Badge, Card, Empty, Facts, Filter, Found, FrozenList, Gone, Id, Listed, LookUp, Maybe, SeesSome, Table, When } from '../ui';

const PLAN_STATUSES = ['CREATED', 'RUNNING', 'PAUSED', 'ATTENTION', 'SUCCEEDED', 'CANCELLED'];
const TASK_STATUSES = ['PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'PAUSED', 'INTERRUPTED', 'CANCELLED'];

export function Plans({ query }: { query: URLSearchParams }) {
    const [status, cursor] = [query.get('status') ?? undefined, query.get('cursor') ?? undefined];
    const polled = useList<Plan>('/v1/plans', { status, cursor });
    return (
        <>
            <h1>Plans and tenants</h1>
            <div class="filters">
                <Filter name="status" label="Status" query={query} options={PLAN_STATUSES} />
                <LookUp label="Tenant" go={(tenant) => go(['tenants', tenant])} />
            </div>
            <FrozenList
                of={polled}
                list={JSON.stringify({ status, cursor })}
                cursor={cursor}
                empty={<>No plan matches. <code>fencepost plan create -f plan.json</code> makes one.<SeesSome /></>}
                label="Plans"
                id={(plan) => plan.id}
                columns={[
                    { head: 'plan', class: 'text', cell: ({ item }) => <a href={link(['plans', item.id])}>{item.name ?? <span class="id">{item.id}</span>}</a> },
                    { head: 'status', class: 'mark room bare', cell: ({ item, left, asOf }) => <><Badge of={item.status} /><Gone left={left} asOf={asOf} /></> },
                    { head: 'tasks', cell: ({ item }) => <Progress of={item} /> },
                    { head: 'failed', class: 'num', cell: ({ item }) => count((item.progress.failed ?? 0) + (item.progress.interrupted ?? 0)) },
                    { head: 'created', class: 'num wide late', cell: ({ item }) => <Ago at={item.created_at} /> },
                ]}
            />
        </>
    );
}

function Progress({ of, says = '' }: { of: Plan; says?: string }) {
    const { total, succeeded = 0 } = of.progress;
    return (
        <span class="meter">
            <progress max={total} value={succeeded} aria-label="Tasks that succeeded" />
            <span>{count(succeeded)} of {count(total)}{says}</span>
        </span>
    );
}

export function PlanPage({ id, query }: { id: string; query: URLSearchParams }) {
    const polled = usePoll(`plan ${id}`, (signal) => get<Plan>(path('/v1/plans', id), {}, signal));
    return (
        <>
            <p class="crumbs"><a href={link(['plans'])}>Plans</a></p>
            <Found of={polled}>{(plan) => <ShownPlan plan={plan} refresh={polled.refresh} />}</Found>
            <Tasks plan={id} query={query} />
            <Events of={path('/v1/plans', id)} tasks={path('/v1/plans', id)} />
        </>
    );
}

/** What follows where somebody resumes the plan. */
function resumes({ on_failure, over_time, progress: { failed = 0, interrupted = 0 } }: Plan): string {
    const left = 'Those that are FAILED or INTERRUPTED stay so until they are retried.';
    if (over_time) return `Tasks that have begun go on. The plan is over its time: no other one starts until it is retried. ${left}`;
    if (on_failure === 'continue' || failed + interrupted === 0) return `Paused and pending tasks go on. ${left}`;
    return `Paused tasks go on. Tasks that had no turn start when no task is FAILED or INTERRUPTED any more. ${left}`;
}

/** What follows where somebody cancels the plan. */
function cancels({ id, name, progress: { total, succeeded = 0, cancelled = 0, running = 0 } }: Plan): string {
    const left = counted(total - succeeded - cancelled, 'task that has not succeeded is', 'tasks that have not succeeded are');
    const stages = running === 0 ? 'None of them runs.' : running === 1 ? 'The stage of the one that runs is told to stop.' : `The stages of the ${count(running)} that run are told to stop.`;
    return `Of the plan ${name ?? id}, ${left} cancelled. ${stages}`;
}

function ShownPlan({ plan, refresh }: { plan: Plan; refresh: () => void }) {
    const at = path('/v1/plans', plan.id);
    const mayChange = useCan('submit');
    const isOver = plan.status === 'SUCCEEDED' || plan.status === 'CANCELLED';
    const change = { at, done: refresh };
    return (
        <>
            <h1>{plan.name ?? <span class="id">{plan.id}</span>}</h1>
            <div class="bar">
                <Badge of={plan.status} />
                {plan.intent !== 'run' ? <span class="aside">intent {plan.intent}</span> : null}
                {plan.over_time ? <Badge of="over time" /> : null}
                <Progress of={plan} says=" tasks succeeded" />
                <span class="space" />
                {mayChange && plan.status === 'CREATED' ? <Change {...change} title="Start plan" verb="start" about="The tasks start in their order, as many at once as the plan allows." /> : null}
                {mayChange && !isOver && plan.intent === 'run' && plan.status !== 'CREATED' ? <Change {...change} title="Pause plan" verb="pause" about="No further stage begins until somebody resumes the plan. Stages under way finish." /> : null}
                {mayChange && !isOver && plan.status !== 'CREATED' && (plan.intent === 'pause' || plan.status === 'ATTENTION' || plan.status === 'PAUSED')
                    ? <Change {...change} title="Resume plan" verb="resume" about={resumes(plan)} />
                    : null}
                {mayChange && !isOver ? <Change {...change} title="Cancel plan" verb="cancel" about={cancels(plan)} danger /> : null}
            </div>
            {(plan.attention ?? []).length > 0 ? (
                <Card title="Needs a person">
                    <Table
                        label="Tasks that need a person"
                        rows={plan.attention ?? []}
                        id={(it) => it.task}
                        columns={[
                            { head: 'tenant', class: 'own names', cell: (it) => <Id to={['tasks', it.task]} id={it.tenant} /> },
                            { head: 'status', class: 'bare', cell: (it) => <Badge of={it.status} /> },
                            { head: 'stage', class: 'names', cell: (it) => <Maybe>{it.stage_name}</Maybe> },
                            { head: 'reason', class: 'text bare', cell: (it) => <Maybe>{it.reason}</Maybe> },
                        ]}
                    />
                </Card>
            ) : null}
            <Card title="Plan">
                <Facts
                    of={[
                        ['id', <span class="id">{plan.id}</span>],
                        ['at once', count(plan.max_concurrency)],
                        ['on failure', plan.on_failure],
                        ['time limit', length(plan.timeout_ms)],
                        ['created', <When at={plan.created_at} />],
                        ['started', plan.started_at ? <When at={plan.started_at} /> : null],
                        ['finished', plan.finished_at ? <When at={plan.finished_at} /> : null],
                        ...Object.entries(plan.progress).filter(([name]) => name !== 'total').map(([name, value]): [string, string] => [name, count(value)]),
                    ]}
                />
            </Card>
        </>
    );
}

function Tasks({ plan, query }: { plan: string; query: URLSearchParams }) {
    const [status, cursor] = [query.get('status') ?? undefined, query.get('cursor') ?? undefined];
    const polled = useList<Task>(`${path('/v1/plans', plan)}/tasks`, { status, cursor });
    return (
        <Card title="Tasks" aside={<Filter name="status" label="Status" query={query} options={TASK_STATUSES} />}>
            <TaskList of={polled} cursor={cursor} />
        </Card>
    );
}

export function TaskList({ of, cursor }: { of: Polled<List<Task>>; cursor: string | undefined }) {
    return (
        <Listed
            of={of}
            cursor={cursor}
            empty="No task matches."
            label="Tasks"
            id={(task) => task.id}
            columns={[
                { head: 'task', class: 'own names', cell: (task) => <a href={link(['tasks', task.id])}>{task.name ?? task.tenant}</a> },
                { head: 'tenant', class: 'names', cell: (task) => <Id to={['tenants', task.tenant]} id={task.tenant} /> },
                { head: 'status', class: 'bare', cell: (task) => <Badge of={task.status} /> },
                { head: 'run', class: 'num', cell: (task) => task.run },
                { head: 'stage', class: 'line', cell: (task) => <Maybe>{task.stage === null ? null : `${task.stage} of ${task.stages.length}`}</Maybe> },
                { head: 'reason', class: 'text wide', cell: (task) => <Maybe>{task.reason}</Maybe> },
                { head: 'changed', class: 'num wide', cell: (task) => <Ago at={task.updated_at} /> },
            ]}
        />
    );
}

/** A change of a plan or a task that people may give a reason for. */
export function Change(props: { at: string; title: string; verb: string; about: string; danger?: boolean; done: () => void }) {
    const { at, title, verb, about, danger = false, done } = props;
    return (
        <Action
            done={done}
            ask={{
                title,
                about,
                danger,
                fields: [{ name: 'reason', label: 'Reason', hint: 'the events show it; may be empty' }],
                run: ({ reason }) => send('POST', `${at}/${verb}`, reason ? { reason } : {}),
            }}
        />
    );
}

const EVENTS_MAX = 2_000;
const EVENTS_SHOWN = 300;

/** The newest events that were read, and the cursor of the page that is read next: of the last one, so that a poll reads only what is new. */
type Kept = { of: string; events: PlanEvent[]; cursor: string | undefined };
type Read = { events: PlanEvent[]; isCut: boolean; goesOn: boolean };

/** As many tasks as a plan has at most. */
const TASKS_MAX = 1_000;
const NAMES_MS = 60_000;

/** What events show of their task. */
type Named = Pick<Task, 'id' | 'tenant' | 'name'>;

/**
 * The events of a plan or a task, the newest first. The API lists them from the oldest on, so each page shows when it is read, and
 * what was read stays while the next one fails. It names tasks by their ids: the tasks of the plan `tasks` are read once, since
 * a plan never gets others.
 */
export function Events({ of, tasks }: { of: string; tasks?: string }) {
    const kept = useRef<Kept>({ of, events: [], cursor: undefined });
    const polled: Polled<Read> = usePoll(`events ${of}`, async (signal) => {
        const { events: before, cursor }: Kept = kept.current.of === of ? kept.current : { of, events: [], cursor: undefined };
        const page: List<PlanEvent> = await get(`${of}/events`, { limit: 1_000, cursor }, signal);
        const events = new Map([...before, ...page.items].map((event) => [event.seq, event]));
        const all = [...events.values()].slice(-EVENTS_MAX);
        kept.current = { of, events: all, cursor: page.next_cursor ?? cursor };
        const goesOn = page.next_cursor !== null;
        if (goesOn) polled.refresh();
        return { events: all.slice(-EVENTS_SHOWN).reverse(), isCut: all.length > EVENTS_SHOWN, goesOn };
    });
    const known = useRef<{ of: string; tasks: Map<string, Named> } | undefined>(undefined);
    const isOfTasks = tasks !== undefined && (polled.data?.events ?? []).some((event) => event.task !== null);
    const names = usePoll(isOfTasks ? `names ${tasks}` : undefined, async (signal) => {
        if (known.current?.of === tasks) return known.current!.tasks;
        const found = new Map<string, Named>();
        for (let cursor: string | undefined, goesOn = true; goesOn; goesOn = cursor !== undefined) {
            const page: List<Task> = await get(`${tasks}/tasks`, { limit: TASKS_MAX, cursor }, signal);
            for (const { id, tenant, name } of page.items) found.set(id, { id, tenant, name });
            cursor = page.next_cursor ?? undefined;
        }
        known.current = { of: tasks!, tasks: found };
        return known.current.tasks;
    }, NAMES_MS);
    return (
        <Card title="Events">
            <Found of={polled}>
                {({ events, isCut, goesOn }) =>
                    events.length === 0 ? (
                        <Empty>{goesOn ? 'Reading on\u2026' : 'Nothing has happened yet.'}</Empty>
                    ) : (
                        <>
                            {goesOn ? (
                                <p class="note">Reading on: newer events than these follow.</p>
                            ) : isCut ? (
                                <p class="note">These are the newest {EVENTS_SHOWN} events; <code>fencepost plan events</code> lists all.</p>
                            ) : null}
                            <Table
                                label="Events"
                                rows={events}
                                id={(event) => String(event.seq)}
                                columns={[
                                    { head: 'at', class: 'at', cell: (event) => <When at={event.at} /> },
                                    ...(tasks === undefined
                                        ? []
                                        : [{ head: 'tenant / task', class: 'text bare', cell: (event: PlanEvent) => <About event={event} task={names.data?.get(event.task ?? '')} /> }]),
                                    {
                                        head: 'what',
                                        class: 'own bare',
                                        cell: (event) => (
                                            <>
                                                <b>{event.kind.replaceAll('_', ' ')}</b>
                                                <small class="under early">{[changed(event), event.stage === null ? null : `stage ${event.stage}`].filter(Boolean).join(', ')}</small>
                                                {event.reason ? <small class="under">{event.reason}</small> : null}
                                            </>
                                        ),
                                    },
                                    { head: 'change', class: 'line wide roomy', cell: (event) => <Maybe>{changed(event)}</Maybe> },
                                    { head: 'stage', class: 'num wide roomy', cell: (event) => <Maybe>{event.stage}</Maybe> },
                                    { head: 'run', class: 'num wide', cell: (event) => <Maybe>{event.run}</Maybe> },
                                    { head: 'by', class: 'wide', cell: (event) => <Maybe>{event.principal}</Maybe> },
                                    { head: 'reason', class: 'text wide', cell: (event) => <Maybe>{event.reason}</Maybe> },
                                ]}
                            />
                        </>
                    )
                }
            </Found>
        </Card>
    );
}

function changed({ before, after }: PlanEvent): string | null {
    return before || after ? `${before ?? '–'} → ${after ?? '–'}` : null;
}

/** Whose event of a plan it is: a task's, or the plan's own. */
function About({ event, task }: { event: PlanEvent; task: Named | undefined }) {
    if (event.task === null) return <i>the plan</i>;
    if (task === undefined) return <Id to={['tasks', event.task]} id={event.task} />;
    return <a href={link(['tasks', task.id])} title={task.id}>{task.tenant}{task.name ? ` / ${task.name}` : ''}</a>;
}
