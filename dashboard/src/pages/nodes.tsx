// Nodes and pools: who works, how full it is, and which node a job would get.

import { useEffect, useState } from 'preact/hooks';
import { get, path, Refusal, refusal, send } from '../api';
import { useCaller, useCan } from '../caller';
import { count, counted } from '../format';
import { useList, useNewest, usePoll, useSoon, useStream } from '../live';
import { go, link } from '../router';
import type { Node, Route, Selection } from '../shapes';
import { Action, Ago, Badge, Card, Facts, Found, Id, Listed, LookUp, Maybe, Meter, SeesSome, Trouble, When } from '../ui';
import { PoolsCard } from './pools';

export function Nodes({ query }: { query: URLSearchParams }) {
    const cursor = query.get('cursor') ?? undefined;
    const polled = useList<Node>('/v1/nodes', { cursor });
    const { sees_everything } = useCaller();
    const isAdmin = useCan('admin');
    const followsAll = isAdmin && sees_everything;
    useStream(followsAll ? '/v1/events?kinds=node&digest=true' : undefined, useSoon(polled.refresh));
    const explain = sees_everything ? <Explain key={query.toString()} query={query} /> : null;
    // Who comes from a job that waits came for this, not for the nodes above it.
    const isAsked = ['pool', 'requires', 'route'].some((name) => query.has(name));
    return (
        <>
            <h1>Nodes and pools</h1>
            {isAsked ? explain : null}
            <LookUp label="Node id" go={(id) => go(['nodes', id])} />
            <Listed
                of={polled}
                cursor={cursor}
                empty={<><b>No node is connected.</b> Start one with <code>fencepost node --url {location.origin} --exec CMD</code>.<SeesSome /></>}
                label="Nodes"
                id={(node) => node.id}
                columns={[
                    { head: 'node', class: 'text', cell: (node) => <Id to={['nodes', node.id]} id={node.id} /> },
                    { head: 'state', class: 'bare', cell: (node) => <Badge of={node.state} /> },
                    { head: 'slots', cell: (node) => <Slots of={node} /> },
                    { head: 'load', class: 'wide roomy', cell: (node) => <Load of={node} /> },
                    { head: 'pools', class: 'names wide late', cell: (node) => <Few of={node.pools} /> },
                    { head: 'labels', class: 'names wide', cell: (node) => <Few of={node.labels} /> },
                    { head: 'version', class: 'names wide roomy', cell: (node) => <Maybe>{node.version}</Maybe> },
                    { head: 'heartbeat', class: 'num wide', cell: (node) => <Ago at={node.heartbeat_at ?? node.seen_at} /> },
                    ...(isAdmin ? [{ head: 'action', class: 'bare', cell: (node: Node) => <Drain node={node} done={polled.refresh} /> }] : []),
                ]}
            />
            <PoolsCard />
            {isAsked ? null : explain}
        </>
    );
}

const FEW = 5;

/** The first of many names, and how many more there are. All of them are in the title, and on the page of the node. */
function Few({ of }: { of: string[] }) {
    const more = of.length - FEW;
    if (more <= 0) return <Maybe>{of.join(', ')}</Maybe>;
    return <span title={of.join(', ')}>{of.slice(0, FEW).join(', ')} <small>and {count(more)} more</small></span>;
}

function Slots({ of }: { of: Node }) {
    return <Meter value={of.used} max={of.capacity} label={`${of.used} of ${of.capacity}`} />;
}

function Load({ of }: { of: Node }) {
    // A tiny load may be written in a form of its own, which is kept: `Number` reads it.
    const parts = Object.entries(of.load ?? {}).map(([name, value]) => `${name} ${Number(Number(value).toFixed(2))}`);
    return <Maybe>{parts.join(', ')}</Maybe>;
}

function Drain({ node, done }: { node: Node; done: () => void }) {
    if (!useCan('admin') || node.state === 'offline') return null;
    const isDrained = node.state === 'draining';
    return (
        <Action
            done={done}
            ask={
                isDrained
                    ? {
                          title: 'Undrain',
                          about: <>The node <b>{node.id}</b> gets jobs again.</>,
                          run: () => send('POST', `${path('/v1/nodes', node.id)}/undrain`),
                      }
                    : {
                          title: 'Drain',
                          about: <>The node <b>{node.id}</b> {finishes(node.used)} until somebody undrains it or its program starts anew.</>,
                          danger: true,
                          run: () => send('POST', `${path('/v1/nodes', node.id)}/drain`),
                      }
            }
        />
    );
}

function finishes(jobs: number): string {
    if (jobs === 0) return 'has no job, and gets none';
    return `finishes the ${jobs === 1 ? 'job' : counted(jobs, 'job')} that it has, and gets no more`;
}

function Explain({ query }: { query: URLSearchParams }) {
    const [pool, setPool] = useState(query.get('pool') ?? '');
    const [requires, setRequires] = useState(query.get('requires') ?? '');
    const [route, setRoute] = useState(query.get('route') ?? '');
    const [found, setFound] = useState<Selection>();
    const [error, setError] = useState<Refusal>();
    const begin = useNewest();
    const ask = async () => {
        const isNewest = begin();
        const needs: { pool?: string; requires?: string[]; route?: Route } = {};
        if (pool.trim() !== '') needs.pool = pool.trim();
        const labels = requires.split(',').map((label) => label.trim()).filter((label) => label !== '');
        if (labels.length > 0) needs.requires = labels;
        try {
            if (route.trim() !== '') needs.route = routeOf(route.trim());
            const selection = await send<Selection>('POST', '/v1/nodes/select', needs);
            if (!isNewest()) return;
            setFound(selection);
            setError(undefined);
        } catch (thrown) {
            if (!isNewest()) return;
            setFound(undefined);
            setError(refusal(thrown));
        }
    };
    // The page of a job that waits leads here with what the job requires.
    useEffect(() => {
        if (pool + requires + route !== '') void ask();
    }, []);
    return (
        <Card title="Which node would a job get?">
            <form class="filters" onSubmit={(event) => { event.preventDefault(); void ask(); }}>
                <label class="field"><span>Pool</span><input value={pool} onInput={(event) => setPool(event.currentTarget.value)} spellcheck={false} /></label>
                <label class="field"><span>Requires</span><input value={requires} placeholder="asr:zh, gpu" onInput={(event) => setRequires(event.currentTarget.value)} spellcheck={false} /></label>
                <label class="field"><span>Route</span><input value={route} placeholder="zh:en" onInput={(event) => setRoute(event.currentTarget.value)} spellcheck={false} /></label>
                <button type="submit">Explain</button>
            </form>
            <Trouble error={error} />
            {found ? <Explained of={found} /> : null}
        </Card>
    );
}

/** The two languages of a route; a refusal where one is missing. */
function routeOf(text: string): Route {
    const at = text.indexOf(':');
    const [source, target] = [text.slice(0, at).trim(), text.slice(at + 1).trim()];
    if (at === -1 || source === '' || target === '') throw new Refusal(400, 'invalid', `Route: ${text} is not two languages, such as zh:en`);
    return { source, target };
}

/** What is said of one node, and of many. */
const REASONS: Record<string, [one: string, many: string]> = {
    pool: ['is in no pool that serves it', 'are in no pool that serves it'],
    paused: ['could run it, but only in a pool that is paused', 'could run it, but only in pools that are paused'],
    labels: ['lacks a label or a language that it requires', 'lack a label or a language that it requires'],
    excluded: ['was excluded', 'were excluded'],
    unreachable: ['is held by another instance that cannot be reached', 'are held by another instance that cannot be reached'],
    not_ready: ['is not ready: its connection is over, or has just begun', 'are not ready: their connection is over, or has just begun'],
    draining: ['is draining', 'are draining'],
    unhealthy: ['is unhealthy', 'are unhealthy'],
    full: ['has no free slot', 'have no free slot'],
};

function Explained({ of }: { of: Selection }) {
    const reasons = Object.entries(of.rejected).filter(([, number]) => number > 0);
    return (
        <div class="explained">
            {of.node !== null ? (
                <p>
                    <span class="badge good">fits</span> A job with these needs would go to <Id to={['nodes', of.node]} id={of.node} />
                    {of.pool ? <> of the pool <b>{of.pool}</b></> : null}.
                </p>
            ) : of.considered === 0 ? (
                <p><span class="badge warn">no node</span> No node is connected that could take it. Start one with <code>fencepost node</code>.</p>
            ) : (
                <p><span class="badge warn">no node</span> {of.considered === 1 ? 'The only node that was considered cannot take it now.' : `None of the ${count(of.considered)} nodes that were considered can take it now.`}</p>
            )}
            {reasons.length > 0 ? (
                <ul>{reasons.map(([reason, number]) => <li key={reason}><b>{count(number)}</b> {REASONS[reason]?.[number === 1 ? 0 : 1] ?? `rejected: ${reason}`}</li>)}</ul>
            ) : null}
        </div>
    );
}

/** What a state of a node means for jobs. */
const STATES: Partial<Record<Node['state'], string>> = {
    draining: 'It finishes what it has, and gets no more jobs.',
    unhealthy: 'It has missed heartbeats or dispatches, or its connection is closed. It gets no jobs until it answers.',
    offline: 'Its connection is closed.',
};

export function NodePage({ id }: { id: string }) {
    const polled = usePoll(`node ${id}`, (signal) => get<Node>(path('/v1/nodes', id), {}, signal));
    return (
        <>
            <p class="crumbs"><a href={link(['nodes'])}>Nodes and pools</a></p>
            <h1><span class="id">{id}</span></h1>
            <Found of={polled}>
                {(node) => (
                    <>
                        <div class="bar"><Badge of={node.state} />{STATES[node.state] ? <span class="aside">{STATES[node.state]}</span> : null}<span class="space" /><Drain node={node} done={polled.refresh} /></div>
                        <Card title="Node">
                            <Facts
                                of={[
                                    ['slots', <Slots of={node} />],
                                    ['load', <Load of={node} />],
                                    ['pools', node.pools.join(', ')],
                                    ['services', node.services.join(', ')],
                                    ['labels', node.labels.join(', ')],
                                    ['version', node.version],
                                    ['held by', <span class="id">{node.instance}</span>],
                                    ['heartbeat', node.heartbeat_at ? <Ago at={node.heartbeat_at} /> : null],
                                    ['registered', node.registered_at ? <When at={node.registered_at} /> : null],
                                    ['changed', <Ago at={node.seen_at} />],
                                    ['record', node.record_version === 0 ? 'the bus does not know of this connection yet' : `version ${count(node.record_version)}`],
                                ]}
                            />
                        </Card>
                    </>
                )}
            </Found>
            <p class="note">Jobs of this node: look at <a href={link(['jobs'], { state: 'RUNNING' })}>running jobs</a>.</p>
        </>
    );
}
