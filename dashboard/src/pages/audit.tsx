// The audit: what operators changed, the newest first.

import { get } from '../api';
import { useCan } from '../caller';
import { useFrozen, usePoll } from '../live';
import type { Audit, List } from '../shapes';
import { Empty, Filter, Found, Fresh, Maybe, Pager, Table, When } from '../ui';

const ACTIONS = [
    'set_policy', 'resolve_nonce', 'confirm_signer', 'set_mode', 'set_pools', 'reload_tokens', 'set_segment', 'set_sequence', 'break_lock',
    'resolve_stage', 'retry_task', 'drain_node', 'undrain_node', 'cancel_job', 'retry_job', 'retry_jobs', 'recover',
];
const FILTERS = ['principal', 'action', 'subject', 'since', 'cursor'];

export function AuditPage({ query }: { query: URLSearchParams }) {
    if (!useCan('admin')) {
        return <><h1>Audit</h1><Empty>The audit needs a token with the scope <code>admin</code>.</Empty></>;
    }
    return (
        <>
            <h1>Audit</h1>
            <div class="filters">
                <Filter name="action" label="Action" query={query} options={ACTIONS} />
                <Filter name="subject" label="Subject" query={query} placeholder="signer:eip155:1:0xab" />
                <Filter name="principal" label="Token" query={query} />
                <Filter name="since" label="Since" query={query} placeholder="2027-01-31T00:00:00Z" />
            </div>
            <Entries query={query} />
        </>
    );
}

function Entries({ query }: { query: URLSearchParams }) {
    const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? undefined]));
    const key = `audit ${JSON.stringify(filters)}`;
    const polled = usePoll(key, (signal) => get<List<Audit>>('/v1/audit', { ...filters, limit: 100 }, signal), 5_000);
    const frozen = useFrozen(key, polled.data?.items, (it) => String(it.id), false);
    return (
        <Found of={polled}>
            {(page) => (
                <>
                    <Fresh count={frozen.fresh} full={frozen.fresh >= 100} show={frozen.show} />
                    {frozen.rows.length === 0 ? (
                        <Empty>No entry matches. Entries are written when operators change something, and kept for 90 days.</Empty>
                    ) : (
                        <Table
                            label="Audit entries"
                            rows={frozen.rows}
                            id={({ item }) => String(item.id)}
                            columns={[
                                { head: 'at', cell: ({ item }) => <When at={item.at} /> },
                                { head: 'token', cell: ({ item }) => <Maybe>{item.principal}</Maybe> },
                                { head: 'action', cell: ({ item }) => <b>{item.action}</b> },
                                { head: 'subject', cell: ({ item }) => <span class="id">{item.subject}</span> },
                                { head: 'before', class: 'wide', cell: ({ item }) => <span class="cut"><Maybe>{item.before}</Maybe></span> },
                                { head: 'after', class: 'wide', cell: ({ item }) => <span class="cut"><Maybe>{item.after}</Maybe></span> },
                                { head: 'reason', class: 'wide', cell: ({ item }) => <Maybe>{item.reason}</Maybe> },
                            ]}
                        />
                    )}
                    <Pager next={page.next_cursor} cursor={filters.cursor ?? null} />
                </>
            )}
        </Found>
    );
}
