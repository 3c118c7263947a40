// What keeps the pages current: polls that pause while the tab is hidden, event streams that reconnect, and lists whose
// rows stay where they are.

import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { get, refusal, stream, withQuery, type Query, type Refusal, type ServerEvent } from './api';
import type { List } from './shapes';

export const POLL_MS = 3_000;
const SOON_MS = 300;
const SOON_EVERY_MS = 2_000;
const RETRY_MS_MIN = 1_000;
const RETRY_MS_MAX = 10_000;

/** How long to wait after so many failures: not the same for all pages, which would all come back at once. */
function retryPause(failures: number): number {
    return Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** (failures - 1)) * (0.5 + Math.random() / 2);
}

export type LinkState = 'live' | 'waiting' | 'lost' | 'paused';

/** The state of the link, for the header. */
let state: LinkState = 'waiting';
let answeredAt = 0;
/** When the first question since the last answer was asked: polls come and go with their pages. */
let unansweredSince: number | undefined;
const listeners = new Set<() => void>();
/** The polls that run: how often each asks, and since when. */
const running = new Set<{ everyMs: number; since: number }>();

/** When the next answer is due: the poll that asks most often gets it. */
function dueAt(): number {
    return Math.min(...Array.from(running, ({ everyMs, since }) => Math.max(since, answeredAt) + everyMs));
}

function tell(next: LinkState): void {
    unansweredSince = undefined;
    if (next === 'live') answeredAt = Date.now();
    // An answer may come after the tab was hidden.
    const shown = document.hidden ? 'paused' : next;
    if (shown === state) return;
    state = shown;
    for (const listener of listeners) listener();
}

/** The state, when the last answer came, and when the next one is due. */
export function useLink(): { state: LinkState; answeredAt: number; dueAt: number } {
    const [, set] = useState(0);
    useEffect(() => {
        const changed = () => set((count) => count + 1);
        listeners.add(changed);
        return () => void listeners.delete(changed);
    }, []);
    return { state, answeredAt, dueAt: dueAt() };
}

// Before those of the polls, which ask when the tab is seen.
document.addEventListener('visibilitychange', () => tell(document.hidden ? 'paused' : 'waiting'));

export type Polled<T> = {
    data: T | undefined;
    /** When `data` came, by the browser's clock: refusals leave it as it is. 0 while there is none. */
    answeredAt: number;
    error: Refusal | undefined;
    refresh: () => void;
};

/**
 * Asks now, every few seconds while the tab is visible, and when it becomes visible. The last answer stays while
 * requests fail; another `key` begins anew. Without a key nothing is asked. A refresh while it asks is done after that: a
 * ledger that answers more slowly than refreshes come would otherwise never be heard.
 */
export function usePoll<T>(key: string | undefined, ask: (signal: AbortSignal) => Promise<T>, everyMs = POLL_MS): Polled<T> {
    const [found, set] = useState<{ key: string | undefined; data?: T; answeredAt?: number; error?: Refusal }>({ key });
    const latest = useRef(ask);
    latest.current = ask;
    const again = useRef<() => void>(() => undefined);

    useEffect(() => {
        if (key === undefined) return;
        let timer: ReturnType<typeof setTimeout> | undefined;
        const over = new AbortController();
        let isAsking = false;
        let isAskedAgain = false;
        let failures = 0;
        const poll = { everyMs, since: unansweredSince ?? Date.now() };
        running.add(poll);

        const run = async () => {
            clearTimeout(timer);
            // A tab that nobody sees asks when it is seen.
            if (document.hidden) return;
            if (isAsking) {
                isAskedAgain = true;
                return;
            }
            [isAsking, isAskedAgain] = [true, false];
            unansweredSince ??= Date.now();
            try {
                const data = await latest.current(over.signal);
                if (over.signal.aborted) return;
                failures = 0;
                tell('live');
                set({ key, data, answeredAt: Date.now() });
            } catch (error) {
                if (over.signal.aborted) return;
                const refused = refusal(error);
                failures += 1;
                tell(refused.status === 0 ? 'lost' : 'live');
                set((before) => ({ ...(before.key === key ? before : {}), key, error: refused }));
            }
            isAsking = false;
            if (!document.hidden) timer = setTimeout(run, failures > 0 ? retryPause(failures) : isAskedAgain ? 0 : everyMs);
        };
        const visible = () => void run();
        again.current = () => void run();
        document.addEventListener('visibilitychange', visible);
        void run();
        return () => {
            over.abort();
            running.delete(poll);
            clearTimeout(timer);
            document.removeEventListener('visibilitychange', visible);
            again.current = () => undefined;
        };
    }, [key, everyMs]);

    const refresh = useCallback(() => again.current(), []);
    const current = found.key === key ? found : { key };
    return { data: current.data, answeredAt: current.answeredAt ?? 0, error: current.error, refresh };
}

/** Polls a page of a list of the API. */
export function useList<T>(target: string, query: Query = {}, everyMs = POLL_MS): Polled<List<T>> {
    const address = withQuery(target, { limit: 100, ...query });
    return usePoll(address, (signal) => get<List<T>>(address, {}, signal), everyMs);
}

/**
 * Follows an event stream while the tab is visible, and opens it again when it ends. `done` says that nothing more
 * comes. Polls go on beside it, so a lost event costs seconds.
 */
export function useStream(target: string | undefined, onEvent: (event: ServerEvent) => void, done = false): boolean {
    const latest = useRef(onEvent);
    latest.current = onEvent;
    const [isOpen, setOpen] = useState(false);
    useEffect(() => {
        if (target === undefined || done) return;
        let controller: AbortController | undefined;
        let timer: ReturnType<typeof setTimeout> | undefined;
        let failures = 0;
        const open = async () => {
            clearTimeout(timer);
            const mine = new AbortController();
            controller = mine;
            try {
                await stream(
                    target,
                    mine.signal,
                    () => {
                        failures = 0;
                        setOpen(true);
                    },
                    (event) => latest.current(event),
                );
            } catch {
                // The polls beside it show what is wrong.
            }
            if (mine.signal.aborted) return;
            setOpen(false);
            failures += 1;
            timer = setTimeout(open, retryPause(failures));
        };
        const close = () => {
            clearTimeout(timer);
            controller?.abort();
            setOpen(false);
        };
        const visible = () => {
            if (document.hidden) close();
            else void open();
        };
        document.addEventListener('visibilitychange', visible);
        if (!document.hidden) void open();
        return () => {
            document.removeEventListener('visibilitychange', visible);
            close();
        };
    }, [target, done]);
    return isOpen;
}

/** Calls `then` soon after the first of many calls, every two seconds at most. */
export function useSoon(then: () => void): () => void {
    const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
    const latest = useRef(then);
    latest.current = then;
    useEffect(() => () => clearTimeout(timer.current), []);
    const calledAt = useRef(-Infinity);
    return useCallback(() => {
        const pause = Math.max(SOON_MS, calledAt.current + SOON_EVERY_MS - performance.now());
        timer.current ??= setTimeout(() => {
            timer.current = undefined;
            calledAt.current = performance.now();
            latest.current();
        }, pause);
    }, []);
}

/** Begins a question that a person asks. What it answers says whether no later one has begun: answers may overtake each other. */
export function useNewest(): () => () => boolean {
    const newest = useRef(0);
    return useCallback(() => {
        const mine = (newest.current += 1);
        return () => newest.current === mine;
    }, []);
}

/** The time, moved every second while the tab is visible, and when it becomes visible. */
export function useNow(): number {
    const [now, set] = useState(Date.now());
    useEffect(() => {
        const move = () => {
            if (!document.hidden) set(Date.now());
        };
        const timer = setInterval(move, 1_000);
        document.addEventListener('visibilitychange', move);
        return () => {
            clearInterval(timer);
            document.removeEventListener('visibilitychange', move);
        };
    }, []);
    return now;
}

export type FrozenRow<T> = {
    item: T;
    /** It left the list. */
    left: boolean;
    /** When it was last among the items of its page, if that now ends before it: it may have changed since. */
    asOf: string | undefined;
};
export type Frozen<T> = {
    rows: FrozenRow<T>[];
    /** How many items are not shown yet. */
    fresh: number;
    /** Shows them. */
    show: () => void;
    /** Where the list goes on after these rows. */
    next: string | null;
};

/**
 * Keeps the rows of a list whose newest items come first where they are: an item changes in its place, one that left
 * the list stays and is marked, and new ones wait until somebody asks for them.
 */
export function useFrozen<T>(key: string, list: List<T> | undefined, id: (item: T) => string): Frozen<T> {
    const shown = useRef<{ key: string; ids: string[]; next: string | null; seen: Map<string, { item: T; at: string }> } | undefined>(undefined);
    const [, redraw] = useState(0);
    const at = useMemo(() => new Date().toISOString(), [list]);
    const current = new Map((list?.items ?? []).map((item) => [id(item), { item, at }]));
    const begin = () => ({ key, ids: [...current.keys()], next: list?.next_cursor ?? null, seen: new Map(current) });
    // An empty list has nothing that could jump.
    if (list !== undefined && (shown.current?.key !== key || shown.current.ids.length === 0)) shown.current = begin();
    const held = shown.current?.key === key ? shown.current : undefined;
    if (held === undefined) return { rows: [], fresh: 0, show: () => undefined, next: null };
    for (const name of held.ids) if (current.has(name)) held.seen.set(name, current.get(name)!);
    // A page that is not the last says nothing of what is behind its items: others may have pushed that out, or the page ends early.
    const goesOn = list?.next_cursor != null;
    const last = held.ids.reduce((last, name, place) => (current.has(name) ? place : last), -1);
    const rows = held.ids.map((name, place) => {
        const { item, at: asOf } = held.seen.get(name)!;
        const isGone = !current.has(name);
        const isBehind = goesOn && place > last;
        return { item, left: isGone && !isBehind, asOf: isGone && isBehind ? asOf : undefined };
    });
    const known = new Set(held.ids);
    // Where the list goes on after these rows, items behind the last of them have moved up from the next page.
    const names = [...current.keys()];
    const end = held.next === null ? -1 : names.reduce((end, name, place) => (known.has(name) ? place : end), -1);
    const fresh = names.filter((name, place) => !known.has(name) && (end === -1 || place < end)).length;
    const show = () => {
        shown.current = begin();
        redraw((count) => count + 1);
    };
    return { rows, fresh, show, next: held.next };
}
