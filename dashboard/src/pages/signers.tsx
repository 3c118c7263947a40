// Signers and their nonces: counts, holes, quarantine, policy.

import { get, path, send } from '../api';
import { useCan } from '../caller';
import { count, length } from '../format';
import { useList, usePoll } from '../live';
import { go, link } from '../router';
import type { Nonce, Signer } from '../shapes';
import { Action, Badge, Card, Facts, Filter, Found, Id, Listed, LookUp, Maybe, SeesSome, When } from '../ui';

export function Signers({ query }: { query: URLSearchParams }) {
    const cursor = query.get('cursor') ?? undefined;
    const polled = useList<Signer>('/v1/signers', { cursor });
    return (
        <>
            <h1>Signers</h1>
            <LookUp label="Signer" placeholder="eip155:1:0xab" go={(signer) => go(['signers', signer])} />
            <p class="note">Holes are the released nonces: granted once, never sent, and free. The next grant takes the lowest of them first.</p>
            <Listed
                of={polled}
                cursor={cursor}
                empty={<><b>No signer yet.</b> The first grant makes one: <code>fencepost nonce grant eip155:1:0xab</code>.<SeesSome /></>}
                label="Signers"
                id={(it) => it.signer}
                columns={[
                    { head: 'signer', class: 'text', cell: (it) => <><Id to={['signers', it.signer]} id={it.signer} /> {it.recovering ? <Badge of="recovering" /> : null}</> },
                    { head: 'next', class: 'num', cell: (it) => count(it.next_nonce) },
                    { head: 'held', class: 'num', cell: (it) => count(it.held) },
                    { head: 'holes', class: 'num', cell: (it) => count(it.released) },
                    { head: 'quarantined', class: 'num', cell: (it) => it.quarantined > 0 ? <b class="warn">{count(it.quarantined)}</b> : 0 },
                    { head: 'consumed', class: 'num wide', cell: (it) => count(it.consumed) },
                    { head: 'oldest hold', class: 'num wide', cell: (it) => <Maybe>{it.oldest_hold_ms === null ? null : length(it.oldest_hold_ms)}</Maybe> },
                    { head: 'on expiry', class: 'wide roomy', cell: (it) => it.policy.on_expiry },
                    { head: 'owner', class: 'names wide', cell: (it) => <Maybe>{it.owner}</Maybe> },
                ]}
            />
        </>
    );
}

export function SignerPage({ signer, query }: { signer: string; query: URLSearchParams }) {
    const polled = usePoll(`signer ${signer}`, (signal) => get<Signer>(path('/v1/signers', signer), {}, signal));
    const isAdmin = useCan('admin');
    return (
        <>
            <p class="crumbs"><a href={link(['signers'])}>Signers</a></p>
            <h1><span class="id">{signer}</span></h1>
            <Found of={polled}>
                {(it) => (
                    <>
                        <div class="bar">
                            {it.recovering ? <Badge of="recovering" /> : null}
                            <span class="space" />
                            {isAdmin && it.recovering ? <Confirm signer={it} done={polled.refresh} /> : null}
                            {isAdmin ? <Policy signer={it} done={polled.refresh} /> : null}
                        </div>
                        <div class="figures">
                            <div class="figure"><span>Next nonce</span><b>{count(it.next_nonce)}</b></div>
                            <a class="figure" href={link(['signers', signer], { status: 'HELD' })}><span>Held</span><b>{count(it.held)}</b></a>
                            <a class="figure" href={link(['signers', signer], { status: 'RELEASED' })}><span>Holes <small>(released)</small></span><b>{count(it.released)}</b></a>
                            <a class={`figure ${it.quarantined > 0 ? 'warn' : ''}`} href={link(['signers', signer], { status: 'QUARANTINED' })}><span>Quarantined</span><b>{count(it.quarantined)}</b></a>
                            <a class="figure" href={link(['signers', signer], { status: 'CONSUMED' })}><span>Consumed</span><b>{count(it.consumed)}</b></a>
                        </div>
                        <div class="columns">
                            <Card title="Lease">
                                <Facts
                                    of={[
                                        ['owner', it.owner],
                                        ['fencing token', it.fencing_token === null ? null : String(it.fencing_token)],
                                        ['expires in', it.owner === null ? null : length(it.lease_expires_in_ms)],
                                        ['oldest hold', it.oldest_hold_ms === null ? null : length(it.oldest_hold_ms)],
                                    ]}
                                />
                            </Card>
                            <Card title="Policy">
                                <Facts
                                    of={[
                                        ['first nonce', count(it.policy.first_nonce)],
                                        ['hold', it.policy.hold_ms === null ? 'as configured' : length(it.policy.hold_ms)],
                                        ['on expiry', it.policy.on_expiry],
                                        ['most in flight', it.policy.max_in_flight === null ? 'no limit' : count(it.policy.max_in_flight)],
                                        ['idempotency keys', it.policy.shared_keys ? SHARED : OWN],
                                    ]}
                                />
                            </Card>
                        </div>
                    </>
                )}
            </Found>
            <Nonces signer={signer} query={query} changed={polled.refresh} />
        </>
    );
}

/** Whose an idempotency key is. */
const OWN = 'each token\u2019s own';
const SHARED = 'shared by all tokens';

const EMPTY: Record<string, string> = {
    QUARANTINED: 'No nonce is quarantined: nothing waits for a decision.',
    RELEASED: 'There is no hole: no nonce is released.',
    all: 'No nonce was granted yet.',
};

function Nonces({ signer, query, changed }: { signer: string; query: URLSearchParams; changed: () => void }) {
    const status = query.get('status') ?? 'QUARANTINED';
    const cursor = query.get('cursor') ?? undefined;
    const polled = useList<Nonce>(`${path('/v1/signers', signer)}/nonces`, { status: status === 'all' ? undefined : status, cursor });
    const isAdmin = useCan('admin');
    const done = () => {
        polled.refresh();
        changed();
    };
    const withDefault = new URLSearchParams(query);
    withDefault.set('status', status);
    return (
        <Card
            title="Nonces"
            aside={<Filter name="status" label="Status" query={withDefault} options={['QUARANTINED', 'RELEASED', 'HELD', 'CONSUMED', 'all']} always />}
        >
            <Listed
                of={polled}
                cursor={cursor}
                empty={EMPTY[status] ?? 'No nonce has this status.'}
                label="Nonces"
                id={(it) => String(it.nonce)}
                columns={[
                    { head: 'nonce', cell: (it) => String(it.nonce) },
                    { head: 'status', class: 'bare', cell: (it) => <Badge of={it.status} /> },
                    { head: 'hold', class: 'wide', cell: (it) => <span class="id">{it.hold}</span> },
                    { head: 'held until', class: 'wide', cell: (it) => <When at={it.held_until} /> },
                    { head: 'tx hash', class: 'names', cell: (it) => <span class="id"><Maybe>{it.tx_hash}</Maybe></span> },
                    { head: 'changed', class: 'num wide', cell: (it) => <When at={it.updated_at} /> },
                    ...(isAdmin ? [{ head: 'action', class: 'bare', cell: (it: Nonce) => it.status === 'QUARANTINED' ? <Resolve signer={signer} nonce={it} done={done} /> : null }] : []),
                ]}
            />
        </Card>
    );
}

/** Decides about a quarantined nonce. The nonce must be typed: a wrong decision sends two transactions, or none. */
function Resolve({ signer, nonce, done }: { signer: string; nonce: Nonce; done: () => void }) {
    return (
        <Action
            done={done}
            ask={{
                title: 'Resolve',
                about: (
                    <>
                        <p>Nobody knows whether a transaction used nonce <b>{String(nonce.nonce)}</b> of <b>{signer}</b>: its hold ran out, its caller reported <b>unknown</b>, or a confirmation after a recovery left it open. Stop its sender and ask the chain first.</p>
                        <p><b>consumed</b>: a transaction with it is mined for good; it is final. <b>never_sent</b>: no node has one, not even pending, and its sender is stopped; it becomes a hole, which the next grant takes.</p>
                    </>
                ),
                danger: true,
                fields: [
                    { name: 'outcome', label: 'Outcome', options: ['consumed', 'never_sent'], unchosen: true },
                    { name: 'tx_hash', label: 'Transaction hash', hint: 'only with consumed; may be empty' },
                ],
                type: String(nonce.nonce),
                confirm: 'Resolve the nonce',
                run: ({ outcome, tx_hash }) => {
                    const body: Record<string, unknown> = { outcome, hold: nonce.hold };
                    if (tx_hash) body.tx_hash = tx_hash.trim();
                    return send('POST', `${path('/v1/signers', signer)}/nonces/${encodeURIComponent(String(nonce.nonce))}/resolve`, body);
                },
            }}
        />
    );
}

/** Seven days. */
const HOLD_MS_MAX = 604_800_000;
const MAX_IN_FLIGHT_MAX = 1_000_000;

function Policy({ signer, done }: { signer: Signer; done: () => void }) {
    const { policy } = signer;
    return (
        <Action
            done={done}
            ask={{
                title: 'Change policy',
                about: 'Only fields that differ are sent. The holds that exist keep their time.',
                fields: [
                    { name: 'on_expiry', label: 'When a hold expires', options: policy.on_expiry === 'release' ? ['release', 'quarantine'] : ['quarantine', 'release'] },
                    { name: 'hold_ms', label: 'Hold, in ms', value: policy.hold_ms === null ? '' : String(policy.hold_ms), most: HOLD_MS_MAX, hint: 'empty: no change' },
                    { name: 'max_in_flight', label: 'Most nonces in flight', value: policy.max_in_flight === null ? '' : String(policy.max_in_flight), most: MAX_IN_FLIGHT_MAX, hint: 'empty: no limit' },
                    { name: 'keys', label: 'Idempotency keys', options: policy.shared_keys ? [SHARED, OWN] : [OWN, SHARED] },
                ],
                run: ({ on_expiry, hold_ms, max_in_flight, keys }) => {
                    const body: Record<string, unknown> = {};
                    if (on_expiry !== policy.on_expiry) body.on_expiry = on_expiry;
                    if (hold_ms && Number(hold_ms) !== policy.hold_ms) body.hold_ms = Number(hold_ms);
                    const most = max_in_flight ? Number(max_in_flight) : null;
                    if (most !== policy.max_in_flight) body.max_in_flight = most;
                    if ((keys === SHARED) !== policy.shared_keys) body.shared_keys = keys === SHARED;
                    return send('PUT', `${path('/v1/signers', signer.signer)}/policy`, body);
                },
            }}
        />
    );
}

/** After the ledger went back in time, an operator says which nonce comes next. */
function Confirm({ signer, done }: { signer: Signer; done: () => void }) {
    return (
        <Action
            done={done}
            ask={{
                title: 'Confirm next nonce',
                about: 'The ledger went back in time. Stop the account\u2019s senders first. Give the account\u2019s transaction count, pending transactions included, from a node that has caught up with the chain; or, where it is higher, the next nonce above all that senders had, sent or not.',
                danger: true,
                fields: [{ name: 'next_nonce', label: 'Next nonce', required: true, least: 0, most: Number.MAX_SAFE_INTEGER }],
                run: ({ next_nonce }) => send('POST', `${path('/v1/signers', signer.signer)}/confirm`, { next_nonce: Number(next_nonce) }),
            }}
        />
    );
}
