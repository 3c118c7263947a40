// The audit: what operators changed, the newest first.

import { useCaller, useCan } from '../caller';
import { useList } from '../live';
import { link } from '../router';
import type { Audit } from '../shapes';
import { Empty, Filter, FrozenList, Maybe, When } from '../ui';

const ACTIONS = [
    'cancel_job', 'retry_job', 'retry_jobs', 'dismiss_job', 'delete_job', 'bulk_retry', 'bulk_cancel', 'bulk_delete', 'bulk_dismiss', 'cancel_bulk',
    'drain_node', 'undrain_node', 'set_pools', 'pause_pool', 'resume_pool', 'retry_task', 'resolve_stage', 'break_lock',
    'start_plan', 'pause_plan', 'resume_plan', 'cancel_plan', 'pause_task', 'resume_task', 'cancel_task', 'set_policy', 'resolve_nonce',
    'confirm_signer', 'set_segment', 'set_sequence', 'set_mode', 'reload_tokens', 'recover',
];
/** What an entry may say beside its subject, each with the class of its line where the screen is too narrow for its column. */
const SIDE = [['before', 'early'], ['after', 'early'], ['reason', '']] as const;
const FILTERS = ['principal', 'action', 'subject', 'since', 'cursor'];

export function AuditPage({ query }: { query: URLSearchParams }) {
    const { sees_everything } = useCaller();
    if (!useCan('admin') || !sees_everything) {
        return <><h1>Audit</h1><Empty>The audit needs a token with the scope <code>admin</code>, and without patterns.</Empty></>;
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

/** The pages of the things that entries are about. */
const PAGES: Record<string, string> = {
    job: 'jobs', bulk: 'bulk', plan: 'plans', task: 'tasks', tenant: 'tenants', node: 'nodes', signer: 'signers',
};

/** What an entry is about, with the way to it: `job:ID`, or `signer:ID nonce 7`. */
function Subject({ of }: { of: string }) {
    const [, kind = '', id = ''] = /^([a-z]+):(\S+)/.exec(of) ?? [];
    const page = PAGES[kind];
    return page === undefined ? <span class="id">{of}</span> : <a class="id" href={link([page, id])}>{of}</a>;
}

/** The first lines of a text, and all of it in the title: what was set before and after often differs behind its first words. */
function Lines({ text }: { text: string | null }) {
    return text ? <span class="first" title={text}>{text}</span> : <Maybe />;
}

function Entries({ query }: { query: URLSearchParams }) {
    const filters = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? undefined]));
    const polled = useList<Audit>('/v1/audit', filters, 5_000);
    return (
        <FrozenList
            of={polled}
            list={JSON.stringify(filters)}
            cursor={filters.cursor}
            empty="No entry matches. Entries are written when operators change something, and kept for 90 days by default (audit.retention_ms)."
            label="Audit entries"
            id={(entry) => String(entry.id)}
            columns={[
                { head: 'at', cell: ({ item }) => <When at={item.at} /> },
                { head: 'token', class: 'bare', cell: ({ item }) => <Maybe>{item.principal}</Maybe> },
                { head: 'action', class: 'bare', cell: ({ item }) => <b>{item.action}</b> },
                {
                    head: 'subject',
                    class: 'text bare',
                    cell: ({ item }) => (
                        <>
                            <Subject of={item.subject} />
                            {SIDE.map(([name, screens]) => item[name] ? <small class={`under ${screens}`} key={name} title={item[name]}>{name}: {item[name]}</small> : null)}
                        </>
                    ),
                },
                { head: 'before', class: 'set wide roomy', cell: ({ item }) => <Lines text={item.before} /> },
                { head: 'after', class: 'set wide roomy', cell: ({ item }) => <Lines text={item.after} /> },
                { head: 'reason', class: 'names wide', cell: ({ item }) => <Maybe>{item.reason}</Maybe> },
            ]}
        />
    );
}
