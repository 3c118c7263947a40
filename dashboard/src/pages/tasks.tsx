// One task of a plan, and one tenant: stages, checkpoints, the lock; pause, retry, decide, unlock.

import { useState } from 'preact/hooks';
import { get, idempotencyKey, path, Refusal, refusal, send } from '../api';
import { useCan } from '../caller';
import { length } from '../format';
import { isObject, pretty, withField } from '../json';
import { useList, usePoll } from '../live';
import { link } from '../router';
import type { Checkpoint, Stage, Task, Tenant } from '../shapes';
import { Action, Ago, Badge, Card, Cut, Empty, Facts, Found, Id, Json, Listed, Maybe, Table, Trouble, useConfirm, When } from '../ui';
import { Change, Events, TaskList } from './plans';

export function TaskPage({ id, query }: { id: string; query: URLSearchParams }) {
    const at = path('/v1/tasks', id);
    const polled = usePoll(`task ${id}`, (signal) => get<Task>(at, {}, signal));
    return (
        <>
            <p class="crumbs"><a href={link(['plans'])}>Plans</a>{polled.data ? <> / <a href={link(['plans', polled.data.plan])}>the task’s plan</a></> : null}</p>
            <Found of={polled}>{(task) => <ShownTask task={task} refresh={polled.refresh} />}</Found>
            <Checkpoints of={at} cursor={query.get('cursor') ?? undefined} />
            <Events of={at} />
        </>
    );
}

/** What follows for others where the task does not hold them back any more. */
function othersStart({ status }: Task): string {
    return status === 'FAILED' || status === 'INTERRUPTED'
        ? ' Tasks of its plan that it holds back start then, unless the plan is paused or waits to be resumed.'
        : '';
}

function ShownTask({ task, refresh }: { task: Task; refresh: () => void }) {
    const at = path('/v1/tasks', task.id);
    const mayChange = useCan('submit');
    const isOver = task.status === 'SUCCEEDED' || task.status === 'CANCELLED';
    const change = { at, done: refresh };
    return (
        <>
            <h1>{task.name ?? task.tenant}</h1>
            <div class="bar">
                <Badge of={task.status} />
                {task.intent !== 'run' ? <span class="aside">intent {task.intent}</span> : null}
                <span class="space" />
                {mayChange && ['PENDING', 'RUNNING'].includes(task.status) && task.intent === 'run' ? <Change {...change} title="Pause task" verb="pause" about="The stage under way finishes; then the task waits." /> : null}
                {mayChange && !isOver && task.intent === 'pause' ? <Change {...change} title="Resume task" verb="resume" about="The task goes on with its next stage." /> : null}
                {mayChange && !isOver ? <Change {...change} title="Cancel task" verb="cancel" about={`The task of the tenant ${task.tenant} is cancelled, and the stage under way is told to stop.${othersStart(task)}`} danger /> : null}
            </div>
            {task.reason ? <div class="trouble"><b>Reason</b> {task.reason}</div> : null}
            <div class="columns">
                <Card title="Task">
                    <Facts
                        of={[
                            ['id', <span class="id">{task.id}</span>],
                            ['tenant', <Id to={['tenants', task.tenant]} id={task.tenant} />],
                            ['place in the plan', task.place],
                            ['run', task.run],
                            ['waits for', task.waits_for],
                            ['run began', task.run_at ? <When at={task.run_at} /> : null],
                            ['changed', <Ago at={task.updated_at} />],
                            ['lock', task.lock ? `token ${task.lock.token}, expires in ${length(task.lock.expires_in_ms)}` : null],
                            ['checkpoint', task.has_checkpoint ? `version ${task.checkpoint_version}` : null],
                        ]}
                    />
                </Card>
                <Card title="Stages">
                    <Table
                        label="Stages"
                        rows={task.stages.map((stage, index) => ({ stage, number: index + 1 }))}
                        id={({ number }) => String(number)}
                        columns={[
                            { head: '#', cell: ({ number }) => number },
                            { head: 'stage', class: 'bare names', cell: ({ stage }) => stage.name },
                            { head: 'status', class: 'bare', cell: ({ stage }) => <Badge of={stage.status} /> },
                            { head: 'job', class: 'bare', cell: ({ stage }) => stage.job ? <Id to={['jobs', stage.job]} id={stage.job} isBrief /> : <Maybe /> },
                            { head: 'action', class: 'bare', cell: ({ stage, number }) => stage.status === 'UNKNOWN' ? <Resolve at={at} stage={stage} number={number} done={refresh} /> : null },
                        ]}
                    />
                </Card>
            </div>
            {mayChange ? <Retry key={task.run} task={task} done={refresh} /> : null}
            <div class="columns">
                <Card title="Context"><Json of={task.context ?? {}} label="Context" /></Card>
                <Card title="Configuration"><Json of={task.config ?? null} label="Configuration" /></Card>
            </div>
        </>
    );
}

/** Decides about the stage's job that the dialog names: the daemon refuses it where the stage has another one by then. */
function Resolve({ at, stage: { name, job, attempts }, number, done }: { at: string; stage: Stage; number: number; done: () => void }) {
    if (!useCan('admin')) return null;
    return (
        <Action
            done={done}
            ask={{
                title: 'Resolve',
                about: (
                    <>
                        {attempts === 0 ? (
                            <p>No attempt of the stage <b>{name}</b> has begun so far, so no node has been sent its job. Say whether it is done all the same.</p>
                        ) : (
                            <p>Nobody knows whether the stage <b>{name}</b> was done. Look at its effect, then say so.</p>
                        )}
                        {job ? <p>Its job is <span class="id">{job}</span>.</p> : null}
                    </>
                ),
                danger: true,
                fields: [
                    { name: 'outcome', label: 'Outcome', options: ['done', 'not_done'], unchosen: true },
                    { name: 'context', label: 'Context', hint: 'with done: a JSON object for the next stage; empty: the one that this stage got' },
                    { name: 'reason', label: 'Reason', required: true },
                ],
                run: ({ outcome, reason, context = '' }) => {
                    const said = { outcome, reason, ...(job ? { job } : {}) };
                    if (context.trim() === '') return send('POST', `${at}/stages/${number}/resolve`, said);
                    if (!isObject(context)) throw new Refusal(400, 'invalid', 'Context: not a JSON object, such as {"schema": 12}');
                    return send('POST', `${at}/stages/${number}/resolve`, withField(said, 'context', context));
                },
            }}
        />
    );
}

/** A dry run of a retry: what was asked, what would happen, and the idempotency key under which it does. */
type Trial = { key: string; asked: { from: string; reason: string; expect: { run: number; checkpoint_version: number } }; found: Task };

/**
 * Retries a run of a task: first a dry run that shows what would happen, then exactly what was shown. Nobody knows whether a retry
 * whose answer was lost began a run: the next press repeats it under the same key.
 */
function Retry({ task, done }: { task: Task; done: () => void }) {
    const [from, setFrom] = useState('checkpoint');
    const [reason, setReason] = useState('');
    const [trial, setTrial] = useState<Trial>();
    const [error, setError] = useState<Refusal>();
    const [isBusy, setBusy] = useState(false);
    const confirm = useConfirm(isBusy);
    if (!['FAILED', 'INTERRUPTED', 'CANCELLED', 'PAUSED'].includes(task.status)) return null;
    const ask = (body: unknown, key?: string) => send<Task>('POST', `${path('/v1/tasks', task.id)}/retry`, body, key);
    const attempt = async (step: () => Promise<void>) => {
        setError(undefined);
        try {
            await step();
        } catch (thrown) {
            setError(refusal(thrown));
        }
    };
    const tryIt = () => attempt(async () => {
        setTrial(undefined);
        const asked = { from, reason, expect: { run: task.run, checkpoint_version: task.checkpoint_version } };
        setTrial({ key: idempotencyKey(), asked, found: await ask({ ...asked, dry_run: true }) });
    });
    const retry = ({ key, asked }: Trial) => attempt(async () => {
        setBusy(true);
        try {
            await ask(asked, key);
        } finally {
            setBusy(false);
        }
        setTrial(undefined);
        done();
    });
    // The daemon refuses a retry that expects another run or checkpoint than the task has.
    const shown = trial?.asked.from === from && trial.asked.reason === reason
        && trial.asked.expect.run === task.run && trial.asked.expect.checkpoint_version === task.checkpoint_version ? trial : undefined;
    return (
        <Card title="Retry">
            <form class="filters" onSubmit={(event) => { event.preventDefault(); void tryIt(); }}>
                <label class="field">
                    <span>From</span>
                    <select value={from} onChange={(event) => setFrom(event.currentTarget.value)}>
                        <option value="checkpoint">the last checkpoint</option>
                        <option value="start">the start</option>
                    </select>
                </label>
                <label class="field grow">
                    <span>Reason</span>
                    <input value={reason} required onInput={(event) => setReason(event.currentTarget.value)} />
                </label>
                <button type="submit">Try without effect</button>
            </form>
            <Trouble error={error} />
            {shown ? (
                <>
                    <p class="note">
                        The run <b>{shown.found.run}</b> would begin with{' '}
                        {shown.found.stages.filter((stage) => stage.status === 'PENDING' || stage.status === 'RUNNING').map((stage) => stage.name).join(', ') || 'no stage'}
                        {' '}and skip {shown.found.stages.filter((stage) => ['SUCCEEDED', 'SKIPPED'].includes(stage.status)).map((stage) => stage.name).join(', ') || 'none'}.
                        {othersStart(task)}
                        {error === undefined && !isBusy ? ' Nothing has changed yet.' : null}
                    </p>
                    <p class="buttons"><button ref={confirm} type="button" class="danger" disabled={isBusy} onClick={() => void retry(shown)}>{isBusy ? 'Working…' : 'Retry the task'}</button></p>
                </>
            ) : null}
        </Card>
    );
}

function Checkpoints({ of, cursor }: { of: string; cursor: string | undefined }) {
    const polled = useList<Checkpoint>(`${of}/checkpoints`, { cursor }, 5_000);
    return (
        <Card title="Checkpoints">
            <Listed
                of={polled}
                cursor={cursor}
                empty="No stage has completed, so there is no checkpoint."
                label="Checkpoints"
                id={(it) => String(it.version)}
                columns={[
                    { head: 'version', cell: (it) => it.version },
                    { head: 'run', class: 'num', cell: (it) => it.run },
                    { head: 'completed', class: 'names', cell: (it) => it.completed_stages.join(', ') },
                    { head: 'saved', cell: (it) => <When at={it.saved_at} /> },
                    { head: 'context', class: 'wide', cell: (it) => <Cut text={pretty(it.context)}>{(text) => <code>{text}</code>}</Cut> },
                ]}
            />
        </Card>
    );
}

export function TenantPage({ tenant, query }: { tenant: string; query: URLSearchParams }) {
    const at = path('/v1/tenants', tenant);
    const polled = usePoll(`tenant ${tenant}`, (signal) => get<Tenant>(at, {}, signal));
    const cursor = query.get('cursor') ?? undefined;
    const history = useList<Task>(`${at}/tasks`, { cursor }, 5_000);
    const isAdmin = useCan('admin');
    const head = <><p class="crumbs"><a href={link(['plans'])}>Plans and tenants</a></p><h1>Tenant {tenant}</h1></>;
    // Jobs and sessions name tenants too, which have no task then.
    if (polled.error?.status === 404) {
        return (
            <>
                {head}
                <Empty>
                    <b>No task of this tenant.</b> No plan that is kept has one, or this token does not see it. Look at{' '}
                    <a href={link(['jobs'], { tenant })}>the tenant’s jobs</a>, or at <a href={link(['sessions'])}>all sessions</a>.
                </Empty>
            </>
        );
    }
    return (
        <>
            {head}
            <Found of={polled}>
                {(found) => (
                    <>
                        <div class="bar">
                            <Badge of={found.task.status} />
                            <a href={link(['tasks', found.task.id])}>newest task</a>
                            <a href={link(['jobs'], { tenant })}>jobs</a>
                        </div>
                        <Card
                            title="Lock"
                            aside={isAdmin && found.lock ? <Unlock tenant={tenant} token={String(found.lock.token)} done={polled.refresh} /> : null}
                        >
                            {found.lock === null ? (
                                <Empty>No task holds the tenant’s lock.</Empty>
                            ) : (
                                <Facts
                                    of={[
                                        ['token', String(found.lock.token)],
                                        ['expires in', length(found.lock.expires_in_ms)],
                                        ['task', <Id to={['tasks', found.lock.task]} id={found.lock.task} />],
                                        ['plan', found.lock.plan ? <Id to={['plans', found.lock.plan]} id={found.lock.plan} /> : null],
                                    ]}
                                />
                            )}
                        </Card>
                    </>
                )}
            </Found>
            {polled.data ? <Card title="Tasks of the tenant"><TaskList of={history} cursor={cursor} /></Card> : null}
        </>
    );
}

function Unlock({ tenant, token, done }: { tenant: string; token: string; done: () => void }) {
    return (
        <Action
            done={done}
            ask={{
                title: 'Break lock',
                about: (
                    <>
                        The task that holds the lock of <b>{tenant}</b> loses it, and other plans may take the tenant. If the task is PENDING, RUNNING
                        or PAUSED, it becomes INTERRUPTED, and the job of its stage is cancelled; a FAILED one stays FAILED. A stage that is under
                        way may still finish.
                    </>
                ),
                danger: true,
                fields: [{ name: 'reason', label: 'Reason', required: true }],
                type: token,
                run: ({ reason }) => send('POST', `${path('/v1/tenants', tenant)}/unlock`, { token: Number(token), reason }),
            }}
        />
    );
}
