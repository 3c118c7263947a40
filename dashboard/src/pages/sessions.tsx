// Sessions, by their ids: the API lists none.

import { get, path, send } from '../api';
import { useCan } from '../caller';
import { count, length } from '../format';
import { usePoll } from '../live';
import { go, link } from '../router';
import type { Session } from '../shapes';
import { Action, Badge, Card, Empty, Facts, Found, Id, LookUp, When } from '../ui';
import { JobList } from './jobs';

export function Sessions() {
    return (
        <>
            <h1>Sessions</h1>
            <LookUp label="Session id" go={(id) => go(['sessions', id])} />
            <Empty>
                A session is shown by its id, which its client knows, and every job of it. <a href={link(['jobs'])}>Find a job</a> and
                follow its session, or open one with <code>POST /v1/sessions</code>.
            </Empty>
        </>
    );
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
                                        about: 'The session takes no new jobs. The jobs that it has accepted finish.',
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
