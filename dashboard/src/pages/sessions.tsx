// Sessions: the list, and one session with its jobs.

import { get, path, send } from '../api';
import { useCan } from '../caller';
import { count, counted, length } from '../format';
import { useList, usePoll } from '../live';
import { go, link } from '../router';
import type { ListedSession, Session } from '../shapes';
import { Action, Ago, Badge, Card, Facts, Filter, Found, Id, Listed, LookUp, Maybe, SeesSome, When } from '../ui';
import { JobList } from './jobs';

const STATES = { open: 'true', closed: 'false' };

export function Sessions({ query }: { query: URLSearchParams }) {
    const cursor = query.get('cursor') ?? undefined;
    const state = query.get('state');
    const open = state === 'open' || state === 'closed' ? STATES[state] : undefined;
    const polled = useList<ListedSession>('/v1/sessions', { open, cursor });
    return (
        <>
            <h1>Sessions</h1>
            <div class="filters" role="search" aria-label="Filters of the list">
                <Filter name="state" label="State" query={query} options={Object.keys(STATES)} />
                <LookUp label="Session id" go={(id) => go(['sessions', id])} />
            </div>
            <Listed
                of={polled}
                cursor={cursor}
                empty={
                    open === undefined ? (
                        <><b>No session is kept.</b> <code>fencepost session open</code> or <code>POST /v1/sessions</code> opens one. A closed one is listed until none of its jobs is kept.<SeesSome /></>
                    ) : (
                        <>No session is {state}.<SeesSome /></>
                    )
                }
                label="Sessions"
                id={(it) => it.id}
                columns={[
                    { head: 'session', class: 'text', cell: (it) => <Id to={['sessions', it.id]} id={it.id} /> },
                    { head: 'state', class: 'bare', cell: (it) => <Badge of={it.closed_at === null ? 'open' : 'closed'} /> },
                    { head: 'ordering', class: 'wide roomy', cell: (it) => it.ordering },
                    { head: 'tenant', class: 'names', cell: (it) => <Maybe>{it.tenant}</Maybe> },
                    { head: 'needs', class: 'names wide', cell: (it) => <Maybe>{needs(it)}</Maybe> },
                    { head: 'idle for', class: 'num', cell: (it) => it.closed_at === null ? length(it.idle_for_ms) : <Maybe /> },
                    { head: 'opened', class: 'num wide', cell: (it) => <Ago at={it.created_at} /> },
                ]}
            />
            <p class="note">Sessions are in the order of their ids, which says nothing of their age.</p>
        </>
    );
}

/** What the session's jobs need of a node, if they say nothing else. */
function needs({ pool, route, requires }: ListedSession): string {
    const parts = [pool ? `pool ${pool}` : null, route ? `route ${route.source}:${route.target}` : null, ...requires];
    return parts.filter((part) => part !== null).join(', ');
}

/** What becomes of the jobs of a session that is closed. */
function left({ jobs: { created, dispatched, running } }: Session): string {
    const unfinished = created + dispatched + running;
    return unfinished === 0 ? 'All jobs that it has accepted are finished.' : `${counted(unfinished, 'job')} that it has accepted ${unfinished === 1 ? 'goes' : 'go'} on to the end.`;
}

export function SessionPage({ id, query }: { id: string; query: URLSearchParams }) {
    const polled = usePoll(`session ${id}`, (signal) => get<Session>(path('/v1/sessions', id), {}, signal));
    const mayChange = useCan('submit');
    return (
        <>
            <p class="crumbs"><a href={link(['sessions'])}>Sessions</a></p>
            <h1><span class="id">{id}</span></h1>
            <Found of={polled}>
                {(session) => (
                    <>
                        <div class="bar">
                            <Badge of={session.closed_at === null ? 'open' : 'closed'} />
                            <span class="space" />
                            {mayChange && session.closed_at === null ? (
                                <Action
                                    done={polled.refresh}
                                    ask={{
                                        title: 'Close session',
                                        about: <>The session <span class="id">{id}</span> takes no new jobs. {left(session)}</>,
                                        danger: true,
                                        run: () => send('DELETE', path('/v1/sessions', id)),
                                    }}
                                />
                            ) : null}
                        </div>
                        <div class="figures">
                            {(['created', 'dispatched', 'running', 'finished'] as const).map((state) => (
                                <div class="figure" key={state}><span>{state}</span><b>{count(session.jobs[state])}</b></div>
                            ))}
                        </div>
                        <Card title="Session">
                            <Facts
                                of={[
                                    ['ordering', session.ordering],
                                    ['owner', session.owner],
                                    ['tenant', session.tenant ? <Id to={['tenants', session.tenant]} id={session.tenant} /> : null],
                                    ['pool', session.pool],
                                    ['route', session.route ? `${session.route.source} → ${session.route.target}` : null],
                                    ['requires', session.requires.join(', ')],
                                    ['last node', session.last_node ? <Id to={['nodes', session.last_node]} id={session.last_node} /> : null],
                                    ['last number', count(session.last_seq)],
                                    ['idle for', `${length(session.idle_for_ms)} of ${length(session.idle_ms)}`],
                                    ['opened', <When at={session.created_at} />],
                                    ['closed', session.closed_at ? <When at={session.closed_at} /> : null],
                                ]}
                            />
                        </Card>
                    </>
                )}
            </Found>
            <h2>Jobs of the session</h2>
            <JobList filters={{ session: id, cursor: query.get('cursor') ?? undefined }} />
        </>
    );
}
