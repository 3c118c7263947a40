// Nodes and pools: who works, how full it is, and which node a job would get.

import { useState } from 'preact/hooks';
import { get, path, send, type Refusal } from '../api';
import { useCaller, useCan } from '../caller';
import { usePoll, useSoon, useStream } from '../live';
import { go, link } from '../router';
import type { List, Node, Pools, Route, Selection } from '../shapes';
import { Action, Ago, Badge, Card, Empty, Facts, Found, Id, Maybe, Meter, Pager, Table, Trouble } from '../ui';
import { Explained } from './job';

export function Nodes({ query }: { query: URLSearchParams }) {
    const cursor = query.get('cursor') ?? undefined;
    const polled = usePoll(`nodes ${cursor}`, (signal) => get<List<Node>>('/v1/nodes', { cursor, limit: 200 }, signal));
    const pools = usePoll('pools', (signal) => get<Pools>('/v1/config/pools', {}, signal), 10_000);
    const { sees_everything } = useCaller();
    const isAdmin = useCan('admin');
    const followsAll = isAdmin && sees_everything;
    useStream(followsAll ? '/v1/events?kinds=node' : undefined, useSoon(polled.refresh));
    return (
        <>
            <h1>Nodes and pools</h1>
            <Found of={polled}>
                {(page) =>
                    page.items.length === 0 ? (
                        <Empty>
                            <b>No node is connected.</b> Start one with <code>fencepost node --url {location.origin} --exec CMD</code>.
                        </Empty>
                    ) : (
                        <>
                            <Table
                                label="Nodes"
                                rows={page.items}
                                id={(node) => node.id}
                                columns={[
                                    { head: 'node', cell: (node) => <Id to={['nodes', node.id]} id={node.id} /> },
                                    { head: 'state', cell: (node) => <Badge of={node.state} /> },
                                    { head: 'slots', cell: (node) => <Slots of={node} /> },
                                    { head: 'load', class: 'wide', cell: (node) => <Load of={node} /> },
                                    { head: 'pools', class: 'wide', cell: (node) => <Maybe>{node.pools.join(', ')}</Maybe> },
                                    { head: 'labels', class: 'wide', cell: (node) => <Maybe>{node.labels.join(', ')}</Maybe> },
                                    { head: 'version', class: 'wide', cell: (node) => <Maybe>{node.version}</Maybe> },
                                    { head: 'changed', class: 'num wide', cell: (node) => <Ago at={node.seen_at} /> },
                                    ...(isAdmin ? [{ head: 'action', cell: (node: Node) => <Drain node={node} done={polled.refresh} /> }] : []),
                                ]}
                            />
                            <Pager next={page.next_cursor} cursor={cursor ?? null} />
                        </>
                    )
                }
            </Found>
            <div class="columns">
                <Card title="Pools" aside={pools.data ? <span class="aside">version {pools.data.version}</span> : null}>
                    <Found of={pools}>
                        {(found) =>
                            found.pools.length === 0 ? (
                                <Empty>No pool is configured: any node takes any job whose labels it has. <code>PUT /v1/config/pools</code> makes pools.</Empty>
                            ) : (
                                <Table
                                    label="Pools"
                                    rows={found.pools}
                                    id={(pool) => pool.name}
                                    columns={[
                                        { head: 'pool', cell: (pool) => <a href={link(['jobs'], { pool: pool.name })}>{pool.name}</a> },
                                        { head: 'routes', cell: (pool) => <Maybe>{pool.routes?.join(', ')}</Maybe> },
                                        { head: 'requires', cell: (pool) => <Maybe>{pool.requires?.join(', ')}</Maybe> },
                                        { head: 'weight', class: 'num', cell: (pool) => pool.weight ?? 1 },
                                    ]}
                                />
                            )
                        }
                    </Found>
                </Card>
                <Explain />
            </div>
        </>
    );
}

function Slots({ of }: { of: Node }) {
    return <Meter value={of.used} max={of.capacity} label={`${of.used} of ${of.capacity}`} />;
}

function Load({ of }: { of: Node }) {
    const parts = Object.entries(of.load ?? {}).map(([name, value]) => `${name} ${Number(value.toFixed(2))}`);
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
                          about: <>The node <b>{node.id}</b> finishes the {node.used} jobs that it has, and gets no more until somebody undrains it or it connects again.</>,
                          danger: true,
                          run: () => send('POST', `${path('/v1/nodes', node.id)}/drain`),
                      }
            }
        />
    );
}

function Explain() {
    const [pool, setPool] = useState('');
    const [requires, setRequires] = useState('');
    const [route, setRoute] = useState('');
    const [found, setFound] = useState<Selection>();
    const [error, setError] = useState<Refusal>();
    const ask = async (event: Event) => {
        event.preventDefault();
        const needs: { pool?: string; requires?: string[]; route?: Route } = {};
        if (pool.trim() !== '') needs.pool = pool.trim();
        const labels = requires.split(',').map((label) => label.trim()).filter((label) => label !== '');
        if (labels.length > 0) needs.requires = labels;
        const [source, target] = route.split(':');
        if (source && target) needs.route = { source: source.trim(), target: target.trim() };
        try {
            setFound(await send<Selection>('POST', '/v1/nodes/select', needs));
            setError(undefined);
        } catch (thrown) {
            setFound(undefined);
            setError(thrown as Refusal);
        }
    };
    return (
        <Card title="Which node would a job get?">
            <form class="filters" onSubmit={ask}>
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

export function NodePage({ id }: { id: string }) {
    const polled = usePoll(`node ${id}`, (signal) => get<Node>(path('/v1/nodes', id), {}, signal));
    return (
        <>
            <p class="crumbs"><a href={link(['nodes'])}>Nodes and pools</a></p>
            <h1><span class="id">{id}</span></h1>
            <Found of={polled}>
                {(node) => (
                    <>
                        <div class="bar"><Badge of={node.state} /><span class="space" /><Drain node={node} done={polled.refresh} /></div>
                        <Card title="Node">
                            <Facts
                                of={[
                                    ['slots', <Slots of={node} />],
                                    ['load', <Load of={node} />],
                                    ['pools', node.pools.join(', ')],
                                    ['labels', node.labels.join(', ')],
                                    ['version', node.version],
                                    ['instance', <span class="id">{node.instance}</span>],
                                    ['changed', <Ago at={node.seen_at} />],
                                ]}
                            />
                        </Card>
                    </>
                )}
            </Found>
            <p class="note">Jobs of this node: look at <button type="button" class="link" onClick={() => go(['jobs'], { state: 'RUNNING' })}>running jobs</button>.</p>
        </>
    );
}
