// The cluster: instances, mode, and who owns what.

import { get, path, send } from '../api';
import { useCaller, useCan } from '../caller';
import { counted, length } from '../format';
import { useList, usePoll } from '../live';
import { go, link } from '../router';
import type { Cluster, Lease, Mode } from '../shapes';
import { Action, Ago, Badge, Card, Facts, Filter, Found, Id, Listed, LookUp, Maybe, SeesSome } from '../ui';
import { Instances } from './overview';

const KINDS = ['instance', 'signer', 'session', 'tenant', 'plan', 'id-worker'];

export function ClusterPage({ query }: { query: URLSearchParams }) {
    const polled = usePoll('cluster', (signal) => get<Cluster>('/v1/cluster', {}, signal));
    const { sees_everything } = useCaller();
    const isAdmin = useCan('admin') && sees_everything;
    const mode = usePoll(isAdmin ? 'mode' : undefined, (signal) => get<Mode>('/v1/config/mode', {}, signal), 10_000);
    return (
        <>
            <h1>Cluster</h1>
            <Found of={polled}>
                {(found) => (
                    <>
                        <Card title="Mode">
                            <Facts
                                of={[
                                    ['mode', found.mode],
                                    ['only', found.only?.length === 0 ? 'none that this token sees' : found.only?.join(', ')],
                                    ['version', mode.data ? String(mode.data.version) : null],
                                    ['ring', String(found.ring_version)],
                                ]}
                            />
                            {mode.data ? (
                                <ChangeMode
                                    key={mode.data.version}
                                    mode={mode.data}
                                    done={() => {
                                        mode.refresh();
                                        polled.refresh();
                                    }}
                                />
                            ) : null}
                        </Card>
                        <Card title="Instances"><Instances of={found} /></Card>
                    </>
                )}
            </Found>
            <Leases query={query} />
        </>
    );
}

const ABOUT = {
    basic: 'Any instance serves any signer, with a commit for each grant.',
    'worker-queue': 'Each signer has one owner, and requests that wait share commits.',
};

/** Replaces the version that the page shows: the daemon refuses it where another one is in force by then. */
function ChangeMode({ mode, done }: { mode: Mode; done: () => void }) {
    const to = mode.mode === 'basic' ? 'worker-queue' : 'basic';
    return (
        <p class="buttons">
            <Action
                done={done}
                ask={{
                    title: `Change to ${to}`,
                    about: (
                        <>
                            <p>All signers of the whole cluster change from <b>{mode.mode}</b> to <b>{to}</b>, while the instances serve. {ABOUT[to]}</p>
                            {mode.only ? <p>The list of {counted(mode.only.length, 'signer that is in a mode of its own', 'signers that are in a mode of their own')} is dropped.</p> : null}
                        </>
                    ),
                    danger: true,
                    type: to,
                    confirm: 'Change the mode',
                    run: () => send('PUT', '/v1/config/mode', { version: mode.version, mode: to }),
                }}
            />
        </p>
    );
}

function Leases({ query }: { query: URLSearchParams }) {
    const value = (name: string) => query.get(name) ?? undefined;
    const [kind, owner, cursor] = [value('kind'), value('owner'), value('cursor')];
    const polled = useList<Lease>('/v1/leases', { kind, owner, cursor });
    return (
        <Card title="Leases">
            <div class="filters">
                <Filter name="kind" label="Kind" query={query} options={KINDS} />
                <Filter name="owner" label="Owner" query={query} />
                <LookUp label="Resource" placeholder="signer:eip155:1:0xab" go={(resource) => go(['leases', resource])} />
            </div>
            <Listed
                of={polled}
                cursor={cursor}
                empty={<>No lease matches.<SeesSome /></>}
                label="Leases"
                id={(lease) => lease.resource}
                columns={[
                    { head: 'resource', class: 'text', cell: (lease) => <Id to={['leases', lease.resource]} id={lease.resource} /> },
                    { head: 'state', class: 'bare', cell: (lease) => <Standing of={lease} /> },
                    { head: 'owner', class: 'wide', cell: (lease) => <span class="id"><Maybe>{lease.owner}</Maybe></span> },
                    { head: 'token', class: 'num', cell: (lease) => String(lease.fencing_token) },
                    { head: 'expires in', class: 'num', cell: (lease) => <Maybe>{lease.live ? length(lease.expires_in_ms) : null}</Maybe> },
                    { head: 'acquired', class: 'num wide', cell: (lease) => <Ago at={lease.acquired_at} /> },
                ]}
            />
        </Card>
    );
}

function Standing({ of: { live, owner } }: { of: Lease }) {
    return <Badge of={live ? 'live' : owner === null ? 'released' : 'expired'} />;
}

type Owner = { resource: string; instance_id: string; url: string; leased: boolean };

export function LeasePage({ resource }: { resource: string }) {
    const lease = usePoll(`lease ${resource}`, (signal) => get<Lease>(path('/v1/leases', resource), {}, signal));
    const owner = usePoll(`owner ${resource}`, (signal) => get<Owner>(path('/v1/cluster/owner', resource), {}, signal));
    return (
        <>
            <p class="crumbs"><a href={link(['cluster'])}>Cluster</a></p>
            <h1><span class="id">{resource}</span></h1>
            <div class="columns">
                <Card title="Lease">
                    <Found of={lease}>
                        {(found) => (
                            <Facts
                                of={[
                                    ['state', <Standing of={found} />],
                                    ['owner', found.owner],
                                    ['fencing token', String(found.fencing_token)],
                                    ['expires in', found.live ? length(found.expires_in_ms) : null],
                                    ['acquired', <Ago at={found.acquired_at} />],
                                    ['renewed', <Ago at={found.renewed_at} />],
                                ]}
                            />
                        )}
                    </Found>
                </Card>
                <Card title="Where requests for it go">
                    <Found of={owner}>
                        {(found) => <Facts of={[['instance', found.instance_id], ['address', found.url], ['holds the lease', found.leased ? 'yes' : 'no']]} />}
                    </Found>
                </Card>
            </div>
        </>
    );
}
