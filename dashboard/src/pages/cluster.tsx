// The cluster: instances, mode, and who owns what.

import { get, path } from '../api';
import { useCan } from '../caller';
import { length } from '../format';
import { useList, usePoll } from '../live';
import { go, link } from '../router';
import type { Cluster, Lease, Mode } from '../shapes';
import { Ago, Badge, Card, Facts, Filter, Found, Id, Listed, LookUp, Maybe } from '../ui';
import { Instances } from './overview';

const KINDS = ['instance', 'signer', 'session', 'tenant', 'plan', 'id-worker'];

export function ClusterPage({ query }: { query: URLSearchParams }) {
    const polled = usePoll('cluster', (signal) => get<Cluster>('/v1/cluster', {}, signal));
    const isAdmin = useCan('admin');
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
                                    ['only', found.only?.join(', ')],
                                    ['version', mode.data ? String(mode.data.version) : null],
                                    ['ring', String(found.ring_version)],
                                ]}
                            />
                        </Card>
                        <Card title="Instances"><Instances of={found} /></Card>
                    </>
                )}
            </Found>
            <Leases query={query} />
        </>
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
                empty="No lease matches."
                label="Leases"
                id={(lease) => lease.resource}
                columns={[
                    { head: 'resource', cell: (lease) => <Id to={['leases', lease.resource]} id={lease.resource} /> },
                    { head: 'state', cell: (lease) => <Badge of={lease.live ? 'live' : lease.owner === null ? 'released' : 'expired'} /> },
                    { head: 'owner', class: 'wide', cell: (lease) => <span class="id"><Maybe>{lease.owner}</Maybe></span> },
                    { head: 'token', class: 'num', cell: (lease) => String(lease.fencing_token) },
                    { head: 'expires in', class: 'num', cell: (lease) => <Maybe>{lease.live ? length(lease.expires_in_ms) : null}</Maybe> },
                    { head: 'acquired', class: 'num wide', cell: (lease) => <Ago at={lease.acquired_at} /> },
                ]}
            />
        </Card>
    );
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
                                    ['state', <Badge of={found.live ? 'live' : 'expired'} />],
                                    ['owner', found.owner],
                                    ['fencing token', String(found.fencing_token)],
                                    ['expires in', length(found.expires_in_ms)],
                                    ['acquired', <Ago at={found.acquired_at} />],
                                    ['renewed', <Ago at={found.renewed_at} />],
                                ]}
                            />
                        )}
                    </Found>
                </Card>
                <Card title="Whose requests for it are">
                    <Found of={owner}>
                        {(found) => <Facts of={[['instance', found.instance_id], ['address', found.url], ['holds the lease', found.leased ? 'yes' : 'no']]} />}
                    </Found>
                </Card>
            </div>
        </>
    );
}
