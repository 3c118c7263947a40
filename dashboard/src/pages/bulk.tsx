// Bulk operations: one action on all jobs that match a filter. They are begun at the list of jobs, and followed here.

import { get, path, send } from '../api';
import { useCan } from '../caller';
import { count, counted, length } from '../format';
import { useList, usePoll } from '../live';
import { go, link } from '../router';
import type { Bulk, BulkAction, BulkTrial } from '../shapes';
import { Action, Ago, Badge, Card, Facts, Found, FrozenList, Gone, Maybe, SeesSome, When } from '../ui';

const RATE = 200;
const RATE_MAX = 10_000;

/** What each does, and what can be done with a stage of a plan, which all of them leave out. */
const ACTIONS: Record<BulkAction, { title: string; about: string; stages?: string; isFinal: boolean }> = {
    retry: { title: 'Retry all', about: 'Each is submitted anew, as another job. Jobs that were retried before are left out.', stages: 'Retry their tasks instead.', isFinal: false },
    cancel: { title: 'Cancel all', about: 'They end as cancelled. Nodes that run them are told to stop.', stages: 'Cancel their tasks instead.', isFinal: true },
    delete: { title: 'Delete all', about: 'The finished jobs among them are forgotten, with their payloads and results.', isFinal: true },
    dismiss: { title: 'Dismiss all', about: 'The dead ones among them keep their outcome, and are not dead any more.', stages: 'The page of such a job dismisses it.', isFinal: false },
};

/** What an empty filter means. */
const EVERY = 'every dead job that is no stage of a plan';

type BulkFilter = Record<string, string | boolean>;

/** The actions that the daemon takes with this filter. */
function offered({ state, outcome, dead, ...others }: BulkFilter): BulkAction[] {
    const isNamed = [state, outcome, dead, ...Object.values(others)].some((value) => value !== undefined);
    const isFinished = state === undefined || state === 'FINISHED';
    const mayBeDead = dead !== false && outcome !== 'succeeded' && outcome !== 'cancelled';
    const all: [BulkAction, boolean][] = [
        ['retry', isFinished && (outcome !== undefined || dead === true)],
        ['cancel', isNamed && state !== 'FINISHED' && outcome === undefined && dead === undefined],
        ['delete', isNamed && isFinished],
        ['dismiss', isFinished && mayBeDead],
    ];
    return all.filter(([, takes]) => takes).map(([action]) => action);
}

/** What can be done to all jobs of the list, beyond the page that is shown. */
export function BulkActions({ filters }: { filters: Record<string, string | undefined> }) {
    const filter: BulkFilter = {};
    for (const [name, value] of Object.entries(filters)) {
        if (value === undefined || value === '' || name === 'cursor') continue;
        // The daemon refuses what is neither, as it refuses the list.
        filter[name] = name === 'dead' && (value === 'true' || value === 'false') ? value === 'true' : value;
    }
    const isNamed = Object.keys(filter).length > 0;
    return (
        <div class="bar">
            {useCan('submit') ? (
                <>
                    <span class="aside">{isNamed ? 'All jobs that match:' : 'All dead jobs but stages of plans:'}</span>
                    {offered(filter).map((action) => <Begin key={action} action={action} filter={filter} />)}
                    {isNamed ? null : <span class="aside">Choose filters to retry, cancel or delete many.</span>}
                    <span class="space" />
                </>
            ) : null}
            <a href={link(['bulk'])}>Bulk operations</a>
        </div>
    );
}

function Begin({ action, filter }: { action: BulkAction; filter: BulkFilter }) {
    const { title, about, stages, isFinal } = ACTIONS[action];
    return (
        <Action
            ask={{
                title,
                about: 'Counting the jobs that match…',
                danger: isFinal,
                fields: [{ name: 'rate', label: 'Jobs per second at most', value: String(RATE), most: RATE_MAX, required: true }],
                first: async () => {
                    // `before` is the moment of the dry run: what is done is done to the jobs that it has counted.
                    const { matched, at_least, before } = await send<BulkTrial>('POST', '/v1/bulk', { action, filter, dry_run: true });
                    const jobs = `${at_least ? 'at least ' : ''}${counted(matched, 'job')}`;
                    const isNone = matched === 0 && !at_least;
                    return {
                        about: <><p><b>{jobs}</b> {matched === 1 ? 'matches' : 'match'} now: <Conditions of={filter} none={EVERY} /></p><p>{about}</p><p>Jobs that {action === 'cancel' ? 'are submitted' : 'finish'} from now on are left out.</p><p>Stages of plans are not counted and stay as they are, even if the list shows them. {stages}</p></>,
                        forbids: isNone,
                        confirm: `${title.split(' ')[0]} ${jobs}`,
                        ...(isFinal && !isNone ? { type: String(matched) } : {}),
                        run: async ({ rate }, key) => {
                            const made = await send<{ id: string }>('POST', '/v1/bulk', { action, filter, before, rate: Number(rate) }, key);
                            go(['bulk', made.id]);
                        },
                    };
                },
            }}
        />
    );
}

function Conditions({ of, none }: { of: BulkFilter; none: string }) {
    const parts = Object.entries(of);
    return parts.length === 0 ? <>{none}</> : <>{parts.map(([name, value]) => <span class="condition" key={name}>{name} <b>{String(value)}</b></span>)}</>;
}

export function Bulks({ query }: { query: URLSearchParams }) {
    const cursor = query.get('cursor') ?? undefined;
    const polled = useList<Bulk>('/v1/bulk', { cursor });
    return (
        <>
            <p class="crumbs"><a href={link(['jobs'])}>Jobs</a></p>
            <h1>Bulk operations</h1>
            <FrozenList
                of={polled}
                list={JSON.stringify({ cursor })}
                cursor={cursor}
                empty={<>No operation in the last 30 days. The <a href={link(['jobs'])}>list of jobs</a> begins one on all jobs that match its filters.<SeesSome /></>}
                label="Bulk operations"
                id={(it) => it.id}
                columns={[
                    { head: 'operation', cell: ({ item }) => <a href={link(['bulk', item.id])}>{item.action}</a> },
                    { head: 'status', class: 'mark bare', cell: ({ item, left, asOf }) => <><Badge of={item.status} /><Gone left={left} asOf={asOf} over={item.finished_at !== null} /></> },
                    { head: 'jobs', class: 'own bare', cell: ({ item }) => <Conditions of={item.filter} none={EVERY} /> },
                    { head: 'progress', class: 'bare', cell: ({ item }) => <Progress of={item} /> },
                    { head: 'skipped', class: 'num wide', cell: ({ item }) => count(item.skipped) },
                    { head: 'failed', class: 'num wide', cell: ({ item }) => count(item.failed) },
                    { head: 'by', class: 'wide', cell: ({ item }) => <Maybe>{item.by}</Maybe> },
                    { head: 'begun', class: 'num wide', cell: ({ item }) => <Ago at={item.created_at} /> },
                ]}
            />
        </>
    );
}

function Progress({ of }: { of: Bulk }) {
    const gone = of.done + of.skipped + of.failed;
    return (
        <span class="meter">
            <progress max={Math.max(of.matched, gone, 1)} value={gone} aria-label="Jobs that were worked on" />
            <span>{count(gone)} of {count(of.matched)}</span>
        </span>
    );
}

export function BulkPage({ id }: { id: string }) {
    const polled = usePoll(`bulk ${id}`, (signal) => get<Bulk>(path('/v1/bulk', id), {}, signal));
    const mayChange = useCan('submit');
    return (
        <>
            <p class="crumbs"><a href={link(['jobs'])}>Jobs</a> / <a href={link(['bulk'])}>Bulk operations</a></p>
            <h1><span class="id">{id}</span></h1>
            <Found of={polled}>
                {(it) => (
                    <>
                        <div class="bar">
                            <b>{it.action}</b>
                            <Badge of={it.status} />
                            <Progress of={it} />
                            {it.status === 'RUNNING' ? <span class="aside">{left(it)}</span> : null}
                            <span class="space" />
                            {mayChange && it.status === 'RUNNING' ? (
                                <Action
                                    done={polled.refresh}
                                    ask={{
                                        title: 'Cancel operation',
                                        about: 'It ends after the jobs that are being worked on. What was done stays done.',
                                        danger: true,
                                        run: () => send('POST', `${path('/v1/bulk', id)}/cancel`),
                                    }}
                                />
                            ) : null}
                        </div>
                        {it.error ? <div class="trouble"><b>Newest error</b> {it.error}</div> : null}
                        <div class="figures">
                            {(['matched', 'done', 'skipped', 'failed'] as const).map((name) => (
                                <div class={`figure ${name === 'failed' && it.failed > 0 ? 'warn' : ''}`} key={name}><span>{name}</span><b>{count(it[name])}</b></div>
                            ))}
                        </div>
                        <Card title="Operation">
                            <Facts
                                of={[
                                    ['jobs', <Conditions of={it.filter} none={EVERY} />],
                                    [it.action === 'cancel' ? 'submitted before' : 'finished before', <When at={it.before} />],
                                    ['rate', `${counted(it.rate, 'job')} per second at most`],
                                    ['begun by', it.by],
                                    ['begun', <When at={it.created_at} />],
                                    ['over', it.finished_at ? <When at={it.finished_at} /> : null],
                                    ['instance', it.instance && <span class="id">{it.instance}</span>],
                                ]}
                            />
                        </Card>
                        <p class="note">Skipped jobs did not match any more when their turn came, or do not allow the action. <a href={link(['jobs'], it.filter)}>Show the jobs that match now.</a></p>
                    </>
                )}
            </Found>
        </>
    );
}

/** The shortest time that is left. */
function left({ matched, done, skipped, failed, rate }: Bulk): string {
    return `at least ${length((Math.max(0, matched - done - skipped - failed) / rate) * 1_000)} left`;
}
