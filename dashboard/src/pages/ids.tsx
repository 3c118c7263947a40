// Distributed ids: how long segments last, and what a snowflake says.

import { useState } from 'preact/hooks';
import { get, path, refusal, type Refusal } from '../api';
import { useCan } from '../caller';
import { count, length, rate } from '../format';
import { useList, useNewest } from '../live';
import type { Segment, Snowflake } from '../shapes';
import { Ago, Card, Empty, Facts, Listed, Maybe, Trouble } from '../ui';

const SOON_S = 600;

export function Ids({ query }: { query: URLSearchParams }) {
    if (!useCan('submit')) {
        return <><h1>IDs</h1><Empty>IDs need a token with the scope <code>submit</code>.</Empty></>;
    }
    return <><h1>IDs</h1><Decode /><Segments query={query} /><Sequences /></>;
}

function Segments({ query }: { query: URLSearchParams }) {
    const cursor = query.get('cursor') ?? undefined;
    const polled = useList<Segment>('/v1/ids/segments', { cursor });
    return (
        <Card title="Segments">
            <Listed
                of={polled}
                cursor={cursor}
                empty={<>No segment yet. <code>fencepost id set-segment order --step 1000</code> or <code>PUT /v1/ids/segments/order</code> makes one.</>}
                label="Segments"
                id={(it) => it.tag}
                columns={[
                    { head: 'tag', class: 'own', cell: (it) => <b>{it.tag}</b> },
                    { head: 'max', class: 'num', cell: (it) => <Maybe>{it.max === null ? null : count(BigInt(it.max))}</Maybe> },
                    { head: 'step', class: 'num', cell: (it) => count(it.step) },
                    { head: 'ids/s', class: 'num', cell: (it) => rate(it.rate) },
                    { head: 'left here', class: 'num wide', cell: (it) => count(it.left) },
                    {
                        head: 'lasts',
                        class: 'num',
                        cell: (it) => it.seconds_left === null ? <Maybe /> : <span class={it.seconds_left < SOON_S ? 'warn' : undefined}>{length(it.seconds_left * 1_000)}</span>,
                    },
                    { head: 'description', class: 'names wide', cell: (it) => <Maybe>{it.description}</Maybe> },
                    { head: 'changed', class: 'num wide', cell: (it) => <Ago at={it.updated_at} /> },
                ]}
            />
        </Card>
    );
}

/** The command lists them: a request for one by its name takes numbers of it. */
function Sequences() {
    return (
        <p class="note">
            <code>fencepost id sequences</code> lists the sequences with their next numbers, and takes none.
        </p>
    );
}

function Decode() {
    const [text, setText] = useState('');
    const [found, setFound] = useState<Snowflake>();
    const [error, setError] = useState<Refusal>();
    const begin = useNewest();
    const decode = async (id: string) => {
        const isNewest = begin();
        try {
            const snowflake = await get<Snowflake>(path('/v1/ids/snowflake', id));
            if (!isNewest()) return;
            setFound(snowflake);
            setError(undefined);
        } catch (thrown) {
            if (!isNewest()) return;
            setFound(undefined);
            setError(refusal(thrown));
        }
    };
    const make = async () => {
        const isNewest = begin();
        try {
            const made = await get<{ ids: string[] }>('/v1/ids/snowflake', { count: 1 });
            if (!isNewest()) return;
            setText(made.ids[0]!);
            await decode(made.ids[0]!);
        } catch (thrown) {
            if (isNewest()) setError(refusal(thrown));
        }
    };
    return (
        <Card title="Snowflake">
            <form class="filters" onSubmit={(event) => { event.preventDefault(); if (text.trim() !== '') void decode(text.trim()); }}>
                <label class="field"><span>Snowflake id</span><input value={text} inputMode="numeric" onInput={(event) => setText(event.currentTarget.value)} spellcheck={false} /></label>
                <button type="submit">Decode</button>
                <button type="button" onClick={() => void make()}>Make one</button>
            </form>
            <Trouble error={error} />
            {found ? (
                <Facts
                    of={[
                        ['time', found.timestamp],
                        ['data center', String(found.data_center)],
                        ['worker', String(found.worker)],
                        ['sequence', String(found.sequence)],
                    ]}
                />
            ) : null}
        </Card>
    );
}
