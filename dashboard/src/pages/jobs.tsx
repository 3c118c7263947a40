// The list of jobs. Its rows stay where they are; new jobs wait behind a button.

import { useCaller, useCan } from '../caller';
import { daemonTime } from '../clock';
import { length } from '../format';
import { useList, useSoon, useStream, type FrozenRow } from '../live';
import { go } from '../router';
import type { Job } from '../shapes';
import { Ago, Badge, Cut, Filter, FrozenList, Gone, Id, LookUp, Maybe, SeesSome, type Column } from '../ui';
import { BulkActions } from './bulk';

const FILTERS = ['state', 'outcome', 'kind', 'session', 'tenant', 'pool', 'dead', 'cursor'];

export function Jobs({ query }: { query: URLSearchParams }) {
    const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? undefined]));
    return (
        <>
            <h1>Jobs</h1>
            <div class="filters" role="search" aria-label="Filters of the list">
                <Filter name="state" label="State" query={query} options={['CREATED', 'DISPATCHED', 'RUNNING', 'FINISHED']} />
                <Filter name="outcome" label="Outcome" query={query} options={['succeeded', 'failed', 'cancelled', 'timed_out']} />
                <Filter name="dead" label="Dead" query={query} options={['true', 'false']} />
                <Filter name="kind" label="Kind" query={query} />
                <Filter name="pool" label="Pool" query={query} />
                <Filter name="tenant" label="Tenant" query={query} />
                <Filter name="session" label="Session" query={query} />
                <LookUp label="Job id" go={(id) => go(['jobs', id])} />
            </div>
            <BulkActions filters={filters} />
            <JobList filters={filters} />
        </>
    );
}

/** Jobs by filter, the newest first. */
export function JobList({ filters }: { filters: Record<string, string | undefined> }) {
    const polled = useList<Job>('/v1/jobs', filters);
    const soon = useSoon(polled.refresh);
    const { sees_everything } = useCaller();
    const followsAll = useCan('admin') && sees_everything;
    useStream(followsAll ? '/v1/events?kinds=job&digest=true' : undefined, soon);
    return (
        <FrozenList
            of={polled}
            list={JSON.stringify(filters)}
            cursor={filters.cursor}
            empty={<>No job matches. Clear a filter, or submit one with <code>fencepost submit</code>.<SeesSome /></>}
            label="Jobs"
            id={(job) => job.id}
            columns={COLUMNS}
            fits="jobs"
        />
    );
}

/** The columns share the width that there is, so the table is never wider: style.css has the shares of `table.jobs`. */
const COLUMNS: Column<FrozenRow<Job>>[] = [
    { head: 'job', class: 'job', cell: ({ item }) => <><Id to={['jobs', item.id]} id={item.id} />{item.kind ? <small class="under">{item.kind}</small> : null}</> },
    { head: 'kind', class: 'kind wide', cell: ({ item }) => <Cut text={item.kind} /> },
    {
        head: 'state',
        class: 'state mark bare',
        cell: ({ item, left, asOf }) => (
            <>
                <Badge of={item.outcome ?? item.state} />
                <Gone left={left} asOf={asOf} over={item.state === 'FINISHED'} />
                {left ? null : isDelayed(item) ? <small title={`due ${item.run_at}`}> delayed</small> : item.dead ? <small class="bad"> dead</small> : item.dismissed_at ? <small> dismissed</small> : item.retried_as ? <small> retried</small> : null}
                {item.progress?.percent !== undefined && item.state === 'RUNNING' ? <small> {Math.round(item.progress.percent)} %</small> : null}
                {failure(item) ? <small class="under lines" title={failure(item)!}>{failure(item)}</small> : null}
            </>
        ),
    },
    { head: 'error', class: 'error wide', cell: ({ item }) => <Cut text={failure(item)} /> },
    { head: 'pool', class: 'pool wide', cell: ({ item }) => <Cut text={item.pool} /> },
    { head: 'tenant', class: 'tenant wide', cell: ({ item }) => <Cut text={item.tenant} /> },
    { head: 'session', class: 'session wide', cell: ({ item }) => <Id to={['sessions', item.session ?? '']} id={item.session} isBrief /> },
    { head: 'node', class: 'node wide', cell: ({ item }) => <Cut text={item.node}>{(node) => <Id to={['nodes', node]} id={node} />}</Cut> },
    { head: 'attempt', class: 'num attempt wide', cell: ({ item }) => `${item.attempt}/${item.max_attempts}` },
    { head: 'created', class: 'num age bare', cell: ({ item }) => <Ago at={item.created_at} /> },
    { head: 'took', class: 'num age took wide', cell: ({ item }) => <Maybe>{took(item)}</Maybe> },
];

/** Whether the job is not due yet, so that no node may have it. */
function isDelayed({ state, run_at }: Job): boolean {
    return state === 'CREATED' && run_at !== null && Date.parse(run_at) > daemonTime();
}

/** Why the job failed. A cancelled one has an error that says no more than its outcome. */
function failure({ outcome, error }: Job): string | null {
    return outcome === 'cancelled' ? null : error;
}

function took(job: Job): string | null {
    return job.finished_at === null ? null : length(Date.parse(job.finished_at) - Date.parse(job.created_at));
}
