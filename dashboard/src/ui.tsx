// The parts that pages are made of. All text from the daemon goes through these as text, never as HTML.

import { createContext, type ComponentChildren, type TargetedEvent } from 'preact';
import { useContext, useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { idempotencyKey, Refusal, refusal } from './api';
import { useCaller } from './caller';
import { daemonTime } from './clock';
import { age, count, moment, tailOf, wholeOf } from './format';
import { pretty } from './json';
import { useFrozen, useNow, type FrozenRow, type Polled } from './live';
import { link, setFilters, turnTo, usePlace } from './router';
import type { List } from './shapes';

const TONES: Record<string, string> = {
    CREATED: 'wait', PENDING: 'wait', DISPATCHED: 'sent', HELD: 'sent', RUNNING: 'run', draining: 'warn', degraded: 'warn', warn: 'warn',
    PAUSED: 'warn', UNKNOWN: 'warn', QUARANTINED: 'warn', INTERRUPTED: 'bad', ATTENTION: 'bad', FAILED: 'bad', failed: 'bad',
    CANCELLING: 'warn', 'pool paused': 'warn', 'no node': 'warn', labels: 'warn', 'no owner': 'warn', 'owner elsewhere': 'warn', 'not ready': 'warn', paused: 'warn', DONE: 'good', timed_out: 'bad', down: 'bad', offline: 'bad', unhealthy: 'bad', expired: 'bad', recovering: 'bad', succeeded: 'good',
    SUCCEEDED: 'good', CONSUMED: 'good', online: 'good', ready: 'good', ok: 'good', live: 'good', dead: 'bad',
};

export function Badge({ of }: { of: string }) {
    return <span class={`badge ${TONES[of] ?? 'plain'}`}>{of}</span>;
}

/** How long ago something was, with the exact time at hand. */
export function Ago({ at }: { at: string | null | undefined }) {
    const now = useNow();
    if (!at) return <span class="none">–</span>;
    return <time dateTime={at} title={at}>{age(daemonTime(now) - Date.parse(at))} ago</time>;
}

export function When({ at }: { at: string | null | undefined }) {
    return at ? <time dateTime={at} title={at}>{moment(at)}</time> : <span class="none">–</span>;
}

export function Maybe({ children }: { children?: ComponentChildren }) {
    const isNone = children === null || children === undefined || children === '';
    return isNone ? <span class="none">–</span> : <>{children}</>;
}

/** A text in one line, cut where its column ends, and whole in the title. */
export function Cut({ text, children }: { text: string | null | undefined; children?: (text: string) => ComponentChildren }) {
    if (!text) return <span class="none">–</span>;
    return <span class="cut" title={text}>{children ? children(text) : text}</span>;
}

/** An id that leads to its page. Where it is brief its beginning cannot be seen, but is copied with the rest. */
export function Id({ to, id, isBrief = false }: { to: string[]; id: string | null | undefined; isBrief?: boolean }) {
    if (!id) return <span class="none">–</span>;
    const tail = tailOf(id);
    if (tail === id) return <a class="id" href={link(to)} title={id}>{id}</a>;
    return <a class={`id uuid ${isBrief ? 'brief' : ''}`} href={link(to)} title={id} aria-label={id}><span class="head">{id.slice(0, -tail.length)}</span>{tail}</a>;
}

export function Facts({ of }: { of: [string, ComponentChildren][] }) {
    return (
        <dl class="facts">
            {of.map(([name, value]) => (
                <div key={name}>
                    <dt>{name}</dt>
                    <dd><Maybe>{value}</Maybe></dd>
                </div>
            ))}
        </dl>
    );
}

export function Card(props: { title: string; id?: string; aside?: ComponentChildren; children: ComponentChildren }) {
    return (
        <section class="card" id={props.id} aria-label={props.title}>
            <header>
                <h2>{props.title}</h2>
                {props.aside}
            </header>
            {props.children}
        </section>
    );
}

export function Empty({ children }: { children: ComponentChildren }) {
    return <div class="empty">{children}</div>;
}

export function Trouble({ error, title }: { error: Refusal | undefined; title?: string }) {
    if (error === undefined) return null;
    // The request is no part of the alert: each poll that is refused has another one, and a screen reader would read it all out again.
    return (
        <div class="trouble">
            <span role="alert"><b>{title ?? (error.status === 0 ? 'No answer' : 'Refused')}</b> <code>{error.code}</code> {error.detail}</span>
            {error.requestId ? <small> request {error.requestId}</small> : null}
        </div>
    );
}

/** What a poll found: its trouble, and its data once there is some. */
export function Found<T>({ of, children }: { of: Polled<T>; children: (data: T) => ComponentChildren }) {
    return (
        <>
            <Trouble error={of.error} />
            {of.data === undefined ? (of.error ? null : <p class="loading">Loading…</p>) : children(of.data)}
        </>
    );
}

export type Column<T> = {
    head: string;
    cell: (row: T) => ComponentChildren;
    /**
     * `num` aligns to the right; `wide` is left out on narrow screens. On a phone each row is a paragraph: there `text` and `own` begin
     * a line, and the head is before each value but the first, unless `bare` ones say what they are.
     */
    class?: string;
};

/** The most rows that a table draws before somebody asks for more: a thousand pools would be drawn anew with each poll. */
const ROWS_MAX = 200;

export function Table<T>(props: {
    label: string;
    columns: Column<T>[];
    rows: T[];
    id: (row: T) => string;
    rowClass?: (row: T) => string | undefined;
    /** The class of a table whose columns share the width that there is. */
    fits?: string | undefined;
}) {
    const [most, setMost] = useState(ROWS_MAX);
    const left = props.rows.length - most;
    return (
        <>
            <div class="scroll" tabIndex={0} role="region" aria-label={props.label}>
                <table class={props.fits ? `fits ${props.fits}` : undefined}>
                    <thead>
                        <tr>{props.columns.map((column) => <th key={column.head} class={column.class} scope="col">{column.head}</th>)}</tr>
                    </thead>
                    <tbody>
                        {props.rows.slice(0, most).map((row) => (
                            <tr key={props.id(row)} class={props.rowClass?.(row)}>
                                {props.columns.map((column) => <td key={column.head} class={column.class} data-head={column.head}>{column.cell(row)}</td>)}
                            </tr>
                        ))}
                    </tbody>
                </table>
            </div>
            {left > 0 ? (
                <div class="pager"><button type="button" onClick={() => setMost(most + ROWS_MAX)}>Show {Math.min(left, ROWS_MAX)} more of {count(left)}</button></div>
            ) : null}
        </>
    );
}

/**
 * Says why a page has no rows. One that is not the last may have none because a token sees few of many items, and a later one
 * because its items are gone or the page before it was the last with any: neither means that the whole list is `empty`.
 */
function Nothing({ next, cursor, empty }: { next: string | null; cursor: string | undefined; empty: ComponentChildren }) {
    return <Empty>{next ? 'Nothing on this page; the list goes on.' : cursor ? 'Nothing on this page; the list ends here.' : empty}</Empty>;
}

/** What an empty list says to a token with patterns, which does not see all that there is. */
export function SeesSome() {
    return useCaller().sees_everything ? null : <> This token sees some names only.</>;
}

/** A page of a list of the API: its rows, or what to say where there is none, and the way to the next page. */
export function Listed<T>(props: {
    of: Polled<List<T>>;
    cursor: string | undefined;
    empty: ComponentChildren;
    label: string;
    columns: Column<T>[];
    id: (row: T) => string;
}) {
    return (
        <Found of={props.of}>
            {({ items, next_cursor }) => (
                <>
                    {items.length === 0 ? <Nothing next={next_cursor} cursor={props.cursor} empty={props.empty} /> : <Table label={props.label} columns={props.columns} rows={items} id={props.id} />}
                    <Pager next={next_cursor} cursor={props.cursor} />
                </>
            )}
        </Found>
    );
}

export function Json({ of, label }: { of: unknown; label: string }) {
    return <pre class="json" tabIndex={0} role="region" aria-label={label}>{pretty(of)}</pre>;
}

export function Meter({ value, max, label }: { value: number; max: number; label: string }) {
    return (
        <span class="meter">
            <meter min={0} max={max} value={value} high={max * 0.9} aria-label={label} />
            <span>{label}</span>
        </span>
    );
}

/** A filter that lives in the address. With `always`, one of its options is chosen always. */
export function Filter(props: { name: string; label: string; query: URLSearchParams; options?: string[]; always?: boolean; placeholder?: string }) {
    const value = props.query.get(props.name) ?? '';
    const id = `filter-${props.name}`;
    // What is typed stays while the page around it is drawn anew. What is typed before an effect would run, too.
    const [text, setText] = useState(value);
    useLayoutEffect(() => setText(value), [value]);
    const set = (event: TargetedEvent<HTMLInputElement | HTMLSelectElement>) =>
        setFilters({ [props.name]: event.currentTarget.value.trim(), cursor: undefined });
    return (
        <label class="field" for={id}>
            <span>{props.label}</span>
            {props.options ? (
                <select id={id} value={value} onChange={set}>
                    {props.always ? null : <option value="">any</option>}
                    {props.options.map((option) => <option key={option} value={option}>{option}</option>)}
                </select>
            ) : (
                <input
                    id={id}
                    type="text"
                    value={text}
                    placeholder={props.placeholder}
                    onInput={(event) => setText(event.currentTarget.value)}
                    onChange={set}
                    spellcheck={false}
                    autocomplete="off"
                />
            )}
        </label>
    );
}

function Pager({ next, cursor }: { next: string | null | undefined; cursor: string | undefined }) {
    if (!next && !cursor) return null;
    const turn = (to: string | undefined) => (event: TargetedEvent<HTMLButtonElement>) => {
        focusHeading(event.currentTarget);
        turnTo(to);
    };
    return (
        <nav class="pager" aria-label="Pages of the list">
            {cursor ? <button type="button" onClick={turn(undefined)}>First page</button> : null}
            {next ? <button type="button" onClick={turn(next)}>Next page</button> : null}
        </nav>
    );
}

/** Another page, or one with new rows, is read from the list's heading on, which has the focus: the button that was pressed goes. */
function focusHeading(button: HTMLElement): void {
    const headings = [...document.querySelectorAll<HTMLElement>('main :is(h1, h2)')];
    const heading = headings.filter((one) => one.compareDocumentPosition(button) & Node.DOCUMENT_POSITION_FOLLOWING).at(-1);
    if (heading === undefined) return;
    heading.tabIndex = -1;
    heading.focus();
}

/** A page of a list whose newest rows come first: those that are shown stay where they are, and new ones wait behind a button. */
export function FrozenList<T>(props: {
    of: Polled<List<T>>;
    /** The list that it is: another one begins anew. */
    list: string;
    cursor: string | undefined;
    empty: ComponentChildren;
    label: string;
    columns: Column<FrozenRow<T>>[];
    id: (item: T) => string;
    fits?: string;
}) {
    const isFull = props.of.data?.next_cursor != null;
    const { rows, fresh, show, next } = useFrozen(props.list, props.of.data, props.id);
    const showFresh = (event: TargetedEvent<HTMLButtonElement>) => {
        focusHeading(event.currentTarget);
        show();
    };
    return (
        <Found of={props.of}>
            {({ items }) => (
                <>
                    {fresh === 0 ? null : <button type="button" class="fresh" onClick={showFresh}>{fresh}{isFull && fresh >= items.length ? '+' : ''} new – show</button>}
                    {rows.length === 0 ? (
                        <Nothing next={next} cursor={props.cursor} empty={props.empty} />
                    ) : (
                        <Table
                            label={props.label}
                            rows={rows}
                            id={({ item }) => props.id(item)}
                            rowClass={({ left }) => (left ? 'left' : undefined)}
                            columns={props.columns}
                            fits={props.fits}
                        />
                    )}
                    <Pager next={next} cursor={props.cursor} />
                </>
            )}
        </Found>
    );
}

/**
 * What a row of such a list says that is not among the items of its page any more, beside a badge in a cell of the class `mark`:
 * one line of it has room for both, so that the row does not grow. An item that is `over` is the same at any time.
 */
export function Gone({ left, asOf, over = false }: { left: boolean; asOf: string | undefined; over?: boolean }) {
    return <>{asOf && !over ? <small> as of <When at={asOf} /></small> : null}{left ? <small> left the list</small> : null}</>;
}

/** Something to look up by its name. */
export function LookUp({ label, placeholder, go }: { label: string; placeholder?: string; go: (text: string) => void }) {
    const [text, set] = useState('');
    return (
        <form class="lookup" onSubmit={(event) => { event.preventDefault(); if (text.trim() !== '') go(text.trim()); }}>
            <label class="field">
                <span>{label}</span>
                <input value={text} placeholder={placeholder} onInput={(event) => set(event.currentTarget.value)} spellcheck={false} autocomplete="off" />
            </label>
            <button type="submit">Show</button>
        </form>
    );
}

export type Field = {
    name: string;
    label: string;
    /** What it has at first: a function is called when the dialog opens. */
    value?: string | (() => string);
    options?: string[];
    /** None of the options is chosen at first. */
    unchosen?: boolean;
    required?: boolean;
    hint?: string;
    /** A whole number, its largest value, and its smallest if that is not 1. */
    most?: number;
    least?: number;
};

export type Ask = {
    /** The button's text, and the dialog's title. */
    title: string;
    about: ComponentChildren;
    danger?: boolean;
    fields?: Field[];
    /**
     * Asked of the daemon when the dialog opens, while `about` says so, and again by a button if it is refused. Until the answer
     * is here, nothing can be confirmed; it completes the rest.
     */
    first?: () => Promise<Partial<Pick<Ask, 'about' | 'type' | 'confirm' | 'run'>> & { forbids?: boolean }>;
    /** What must be typed before the button can be pressed. */
    type?: string;
    /** The button within the dialog. */
    confirm?: string;
    /**
     * Does it; the dialog closes when it has succeeded, and shows why it was refused. The idempotency key is the dialog's: nobody
     * knows whether a press whose answer was lost did something, and the next press must not do it twice. Where it depends on
     * the answer to `first`, that brings it.
     */
    run?: (values: Record<string, string>, key: string) => Promise<unknown>;
};

type Asked = { ask: Ask; done: (() => void) | undefined };

/** Opens a dialog. */
const Opening = createContext<(asked: Asked) => void>(() => undefined);

/** The dialog that is open is beside the pages: it stays when the button that opened it goes. */
export function Dialogs({ children }: { children: ComponentChildren }) {
    const [asked, open] = useState<Asked>();
    return (
        <Opening.Provider value={open}>
            {children}
            {asked ? <Dialog {...asked} close={() => open(undefined)} /> : null}
        </Opening.Provider>
    );
}

function focusMain(): void {
    document.querySelector<HTMLElement>('main')?.focus({ preventScroll: true });
}

/**
 * A button that asks before it acts, and shows what the daemon says. The dialog does what it said when it opened, whatever the
 * page behind it shows by then.
 */
export function Action({ ask, done }: { ask: Ask; done?: () => void }) {
    const open = useContext(Opening);
    const button = useRef<HTMLButtonElement>(null);
    // Many a button goes with what it has done, a moment after its dialog has given the focus back to it.
    useLayoutEffect(() => {
        const mine = button.current;
        return () => {
            if (mine === document.activeElement) focusMain();
        };
    }, []);
    return <button ref={button} type="button" class={ask.danger ? 'danger' : undefined} onClick={() => open({ ask, done })}>{ask.title}</button>;
}

/**
 * The values as `run` takes them: a whole number in digits alone. It is no `input type="number"`: some browsers read `1,000`
 * there as 1, by the language of their user.
 */
function checked(fields: Field[], values: Record<string, string>): Record<string, string> {
    const whole = ({ name, label, most, least = 1, required }: Field): [string, string] => {
        const text = values[name]!.trim();
        if (most === undefined) return [name, values[name]!];
        if (text === '' && !required) return [name, ''];
        const number = wholeOf(text);
        if (number === undefined || number < least || number > most) {
            throw new Refusal(400, 'invalid', `${label}: not a whole number from ${count(least)} to ${count(most)}`);
        }
        return [name, String(number)];
    };
    return Object.fromEntries(fields.map(whole));
}

function initial({ value, options, unchosen }: Field): string {
    return (typeof value === 'function' ? value() : value) ?? (unchosen ? undefined : options?.[0]) ?? '';
}

/** Whether a text is what must be typed: a number also with the commas that `count` writes. */
function isTyped(text: string, asked: string): boolean {
    const entry = text.trim();
    return entry === asked || (wholeOf(entry) !== undefined && entry.replaceAll(',', '') === asked);
}

/** For the button of an action. It loses the focus while it is disabled, and gets it back after a refusal, if nothing else has it. */
export function useConfirm(isBusy: boolean) {
    const button = useRef<HTMLButtonElement>(null);
    const wasBusy = useRef(false);
    useLayoutEffect(() => {
        const focused = document.activeElement;
        const isLost = focused === document.body || focused instanceof HTMLDialogElement;
        if (wasBusy.current && !isBusy && isLost) button.current?.focus();
        wasBusy.current = isBusy;
    }, [isBusy]);
    return button;
}

/** What a dialog is about: a screen reader reads it out beside the title, since the focus is in the first field below it. */
const ABOUT = 'dialog-about';

function Dialog({ ask: asked, done, close }: Asked & { close: () => void }) {
    const dialog = useRef<HTMLDialogElement>(null);
    const [learned, setLearned] = useState<Awaited<ReturnType<NonNullable<Ask['first']>>> | undefined>(asked.first ? undefined : {});
    const ask: Ask = { ...asked, ...learned };
    const [values, setValues] = useState(() => Object.fromEntries((ask.fields ?? []).map((field) => [field.name, initial(field)])));
    const [typed, setTyped] = useState('');
    const [key] = useState(idempotencyKey);
    const [error, setError] = useState<Refusal>();
    const [isBusy, setBusy] = useState(false);
    const confirm = useConfirm(isBusy);
    const isOver = useRef(false);
    const learn = () => {
        setError(undefined);
        asked.first?.().then(
            (found) => isOver.current || setLearned(found),
            (thrown) => isOver.current || setError(refusal(thrown)),
        );
    };
    const isUnlearned = learned === undefined && error !== undefined;
    // Before it is painted: a key that is pressed at once is the dialog's.
    useLayoutEffect(() => {
        const element = dialog.current!;
        const before = document.activeElement as HTMLElement | null;
        element.showModal();
        learn();
        return () => {
            isOver.current = true;
            element.close();
            // The page may have no such button by then.
            if (before?.isConnected) before.focus({ preventScroll: true });
            else focusMain();
        };
    }, []);
    const isReady = !isBusy && learned !== undefined && !learned.forbids && (ask.type === undefined || isTyped(typed, ask.type));
    const submit = async (event: Event) => {
        event.preventDefault();
        if (!isReady) return;
        setBusy(true);
        setError(undefined);
        try {
            await ask.run?.(checked(ask.fields ?? [], values), key);
            done?.();
            close();
        } catch (thrown) {
            setError(refusal(thrown));
            setBusy(false);
        }
    };
    // Who leaves while it works would not see a refusal.
    const leave = () => isBusy || close();
    // What it asks is about the page that it was opened at.
    const address = usePlace().parts.join('/');
    const [openedAt] = useState(address);
    useEffect(() => {
        if (address !== openedAt) leave();
    }, [address]);
    return (
        <dialog
            ref={dialog}
            aria-label={ask.title}
            aria-describedby={ABOUT}
            onCancel={(event) => { event.preventDefault(); leave(); }}
            // A browser may close a dialog at the second Esc without asking.
            onClose={() => dialog.current?.showModal()}
        >
            <form onSubmit={submit}>
                <h2>{ask.title}</h2>
                {isUnlearned ? null : <div class="about" id={ABOUT} aria-live={asked.first ? 'polite' : undefined}>{ask.about}</div>}
                {(ask.fields ?? []).map((field) => (
                    <label class="field" key={field.name}>
                        <span>{field.label}</span>
                        {field.options ? (
                            <select value={values[field.name]} required={field.unchosen} onChange={(event) => setValues({ ...values, [field.name]: event.currentTarget.value })}>
                                {field.unchosen ? <option value="">choose</option> : null}
                                {field.options.map((option) => <option key={option}>{option}</option>)}
                            </select>
                        ) : (
                            <input
                                value={values[field.name]}
                                required={field.required}
                                type="text"
                                inputMode={field.most === undefined ? undefined : 'numeric'}
                                onInput={(event) => setValues({ ...values, [field.name]: event.currentTarget.value })}
                                spellcheck={false}
                                autocomplete="off"
                            />
                        )}
                        {field.hint ? <small>{field.hint}</small> : null}
                    </label>
                ))}
                {ask.type !== undefined ? (
                    <label class="field">
                        <span>Type <code>{ask.type}</code> to confirm</span>
                        <input value={typed} onInput={(event) => setTyped(event.currentTarget.value)} spellcheck={false} autocomplete="off" />
                    </label>
                ) : null}
                <Trouble error={error} />
                <div class="buttons">
                    <button type="button" disabled={isBusy} onClick={leave}>Back</button>
                    {isUnlearned ? <button type="button" onClick={learn}>Try again</button> : null}
                    <button ref={confirm} type="submit" class={ask.danger ? 'danger' : 'primary'} disabled={!isReady}>{isBusy ? 'Working…' : (ask.confirm ?? ask.title)}</button>
                </div>
            </form>
        </dialog>
    );
}
