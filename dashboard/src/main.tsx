// The dashboard: who the caller is, the frame around the pages, and which page an address names.

import 'uplot/dist/uPlot.min.css';
import './style.css';
import { render } from 'preact';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { get, Refusal, refusal, setToken, token, whenUnauthorized } from './api';
import { Caller } from './caller';
import { length } from './format';
import { useLink, useNow, usePoll } from './live';
import { link, usePlace, type Place } from './router';
import type { Whoami } from './shapes';
import { choice, choose, type Choice } from './theme';
import { Dialogs, Empty, Trouble } from './ui';
import { AuditPage } from './pages/audit';
import { BulkPage, Bulks } from './pages/bulk';
import { ClusterPage, LeasePage } from './pages/cluster';
import { Ids } from './pages/ids';
import { JobPage } from './pages/job';
import { Jobs } from './pages/jobs';
import { NodePage, Nodes } from './pages/nodes';
import { Overview } from './pages/overview';
import { PlanPage, Plans } from './pages/plans';
import { SessionPage, Sessions } from './pages/sessions';
import { SignerPage, Signers } from './pages/signers';
import { TaskPage, TenantPage } from './pages/tasks';

/** Name in the address, name for people, key after `g`. */
const PAGES: [string, string, string][] = [
    ['', 'Overview', 'o'],
    ['jobs', 'Jobs', 'j'],
    ['sessions', 'Sessions', 's'],
    ['nodes', 'Nodes and pools', 'n'],
    ['plans', 'Plans and tenants', 'p'],
    ['signers', 'Signers', 'i'],
    ['ids', 'IDs', 'd'],
    ['cluster', 'Cluster', 'c'],
    ['audit', 'Audit', 'a'],
];
const BELONGS: Record<string, string> = { tasks: 'plans', tenants: 'plans', leases: 'cluster', bulk: 'jobs' };

function Page({ place }: { place: Place }) {
    const { parts, query } = place;
    const [name = '', id] = parts;
    switch (name) {
        case '': return <Overview />;
        case 'jobs': return id ? <JobPage key={id} id={id} /> : <Jobs query={query} />;
        case 'bulk': return id ? <BulkPage key={id} id={id} /> : <Bulks query={query} />;
        case 'sessions': return id ? <SessionPage key={id} id={id} query={query} /> : <Sessions query={query} />;
        case 'nodes': return id ? <NodePage key={id} id={id} /> : <Nodes query={query} />;
        case 'plans': return id ? <PlanPage key={id} id={id} query={query} /> : <Plans query={query} />;
        case 'tasks': return id ? <TaskPage key={id} id={id} query={query} /> : <NoPage />;
        case 'tenants': return id ? <TenantPage key={id} tenant={id} query={query} /> : <NoPage />;
        case 'signers': return id ? <SignerPage key={id} signer={id} query={query} /> : <Signers query={query} />;
        case 'ids': return <Ids query={query} />;
        case 'cluster': return <ClusterPage query={query} />;
        case 'leases': return id ? <LeasePage key={id} resource={id} /> : <NoPage />;
        case 'audit': return <AuditPage query={query} />;
        default: return <NoPage />;
    }
}

function NoPage() {
    return <><h1>No such page</h1><Empty>Nothing is at this address. <a href={link([])}>Go to the overview.</a></Empty></>;
}

const WHOAMI_MS = 60_000;

/** The version of the page, which the build puts here. */
declare const OWN_VERSION: string;

type Known = { whoami?: Whoami; error?: Refusal; asks?: boolean };

function App() {
    const [known, set] = useState<Known>({});
    const attempt = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
    const enter = async () => {
        clearTimeout(attempt.current);
        // No header takes other characters, so the daemon could not be asked.
        if (!/^[!-~]*$/.test(token())) {
            setToken('');
            set({ asks: true, error: new Refusal(0, 'invalid', 'it has a character that no token has, such as a space, a curly quote, or one that cannot be seen') });
            return;
        }
        try {
            const whoami = await get<Whoami>('/v1/whoami');
            set({ whoami });
        } catch (thrown) {
            const error = refusal(thrown);
            if (error.status === 401) {
                const had = token() !== '';
                setToken('');
                set(had ? { asks: true, error } : { asks: true });
                return;
            }
            set({ error });
            attempt.current = setTimeout(enter, 2_000);
        }
    };
    useEffect(() => {
        // A token that was taken away ends the view. A wrong one at the door is shown there.
        whenUnauthorized(() => set((before) => {
            if (before.whoami === undefined) return before;
            setToken('');
            return { asks: true, error: new Refusal(401, 'unauthorized', 'the token is not known any more') };
        }));
        void enter();
        return () => clearTimeout(attempt.current);
    }, []);
    const leave = () => {
        setToken('');
        set({ asks: true });
    };
    if (known.asks) return <Door error={known.error} enter={enter} />;
    if (known.whoami === undefined) {
        return <div class="door"><Brand /><Trouble error={known.error} />{known.error ? <p class="note">Trying again…</p> : <p class="loading">Loading…</p>}</div>;
    }
    return <Inside entered={known.whoami} leave={leave} />;
}

/** What a token may do changes while the page is open, and so does the daemon's version. */
function Inside({ entered, leave }: { entered: Whoami; leave: () => void }) {
    const isNew = useRef(true);
    const { data: whoami = entered } = usePoll('whoami', async (signal) => {
        if (!isNew.current) return get<Whoami>('/v1/whoami', {}, signal);
        isNew.current = false;
        return entered;
    }, WHOAMI_MS);
    return <Caller.Provider value={whoami}><Dialogs><Frame whoami={whoami} leave={leave} /></Dialogs></Caller.Provider>;
}

function Newer({ version }: { version: string }) {
    if (version === OWN_VERSION) return null;
    return (
        <div class="notice" role="status">
            <span>The daemon has the version <b>{version}</b> now, and this page is of the version <b>{OWN_VERSION}</b>.</span>
            <button type="button" onClick={() => location.reload()}>Reload</button>
        </div>
    );
}

function Brand() {
    return <span class="brand"><i aria-hidden="true">|-|-|</i> Fencepost</span>;
}

function Door({ error, enter }: { error: Refusal | undefined; enter: () => Promise<void> }) {
    const [text, set] = useState('');
    const submit = (event: Event) => {
        event.preventDefault();
        setToken(text.trim());
        void enter();
    };
    return (
        <main class="door">
            <h1><Brand /></h1>
            <form onSubmit={submit}>
                <label class="field">
                    <span>Token</span>
                    <input type="password" value={text} autocomplete="off" required autofocus onInput={(event) => set(event.currentTarget.value)} />
                    <small>It stays in this tab and is sent to this daemon only.</small>
                </label>
                <Trouble error={error} title={error?.status === 401 ? 'The daemon refuses the token' : 'This is no token'} />
                <button type="submit" class="primary">Enter</button>
            </form>
            <ThemeSwitch />
        </main>
    );
}

/** The time zone of the browser, in which all times are but those of titles. */
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

function Frame({ whoami, leave }: { whoami: Whoami; leave: () => void }) {
    const place = usePlace();
    const [isOpen, setOpen] = useState(false);
    const menu = useRef<HTMLButtonElement>(null);
    const main = useRef<HTMLElement>(null);
    const here = BELONGS[place.parts[0] ?? ''] ?? place.parts[0] ?? '';
    const name = PAGES.find(([page]) => page === here)?.[1] ?? 'Fencepost';
    const address = place.parts.join('/');
    const first = useRef(true);
    // Before the new page is painted: later, the focus would be taken from what a fast reader has chosen by then.
    useLayoutEffect(() => {
        document.title = `${place.parts[1] ?? name} – Fencepost`;
        setOpen(false);
        // A new page is read from its top.
        if (!first.current) main.current?.focus();
        first.current = false;
        scrollTo(0, 0);
    }, [address]);
    useKeys();
    // With the menu, not after it: a person who sees it may press.
    useLayoutEffect(() => {
        if (!isOpen) return;
        const pressed = (event: KeyboardEvent) => {
            if (event.key !== 'Escape' || (event.target as HTMLElement).closest('dialog')) return;
            setOpen(false);
            menu.current?.focus();
        };
        addEventListener('keydown', pressed);
        return () => removeEventListener('keydown', pressed);
    }, [isOpen]);
    // No address changes where the page that is shown is chosen.
    const chosen = () => {
        if (isOpen) main.current?.focus();
        setOpen(false);
    };
    const canSee = whoami.scopes.includes('read');
    return (
        <div class="frame">
            <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>Skip to the content</a>
            <header class="top">
                <a class="home" href={link([])}><Brand /></a>
                <button ref={menu} type="button" class="menu" aria-expanded={isOpen} aria-controls="pages" onClick={() => setOpen(!isOpen)}>{name}</button>
                <span class="space" />
                <LinkSign />
            </header>
            <div class={`side ${isOpen ? 'open' : ''}`}>
                <nav id="pages" aria-label="Pages">
                    <ul>
                        {PAGES.map(([page, title, key]) => (
                            <li key={page}>
                                <a href={link([page])} aria-current={page === here ? 'page' : undefined} onClick={chosen}>{title}<kbd aria-hidden="true">g {key}</kbd></a>
                            </li>
                        ))}
                    </ul>
                </nav>
                <div class="foot">
                    <ThemeSwitch />
                    <p>{whoami.name === null ? 'no tokens are configured' : <>token <b>{whoami.name}</b></>}<br />scopes {whoami.scopes.join(', ') || 'none'}</p>
                    <p>version {whoami.version}<br />times in {ZONE}</p>
                    {whoami.name === null ? null : <button type="button" onClick={leave}>Leave</button>}
                </div>
            </div>
            <main ref={main} id="content" tabIndex={-1}>
                <Newer version={whoami.version} />
                {canSee ? <Page place={place} /> : <Empty>The token <b>{whoami.name}</b> has the scopes {whoami.scopes.join(', ')}. The dashboard needs <code>read</code>.</Empty>}
            </main>
        </div>
    );
}

/** How long after it was due an answer is late. */
const LATE_MS = 12_000;

function LinkSign() {
    const { state, answeredAt, dueAt } = useLink();
    const now = useNow();
    const age = Math.max(0, now - answeredAt);
    const isLate = state === 'live' && now > dueAt + LATE_MS;
    const words = { live: isLate ? 'waiting' : 'live', waiting: 'connecting', lost: 'reconnecting', paused: 'paused' }[state];
    const isOld = isLate || ((state === 'lost' || state === 'waiting') && answeredAt !== 0);
    // The age is no part of the status: a screen reader would read it out every second.
    return (
        <span class={`link-sign ${state}`}>
            <i aria-hidden="true" /><span role="status">{words}</span>{isOld ? <span>last answer {length(age)} ago</span> : null}
        </span>
    );
}

function ThemeSwitch() {
    const [chosen, set] = useState(choice);
    const pick = (next: Choice) => {
        choose(next);
        set(next);
    };
    return (
        <div class="theme" role="group" aria-label="Colours">
            {(['auto', 'light', 'dark'] as const).map((one) => (
                <button type="button" key={one} aria-pressed={chosen === one} onClick={() => pick(one)}>{one}</button>
            ))}
        </div>
    );
}

/** `g` and a letter goes to a page; `/` goes to the first filter. */
function useKeys(): void {
    // With the page, not after it: a person who sees it may press.
    useLayoutEffect(() => {
        let after = -Infinity;
        const pressed = (event: KeyboardEvent) => {
            const target = event.target as HTMLElement;
            if (event.ctrlKey || event.metaKey || event.altKey || target.closest('input, select, textarea, dialog')) return;
            if (event.key === '/') {
                const filter = document.querySelector<HTMLElement>('main input, main select');
                if (filter) {
                    event.preventDefault();
                    filter.focus();
                }
            } else if (event.key === 'g') {
                after = event.timeStamp;
            } else if (event.timeStamp - after < 1_500) {
                const page = PAGES.find(([, , key]) => key === event.key);
                after = -Infinity;
                if (page) location.hash = link([page[0]]);
            }
        };
        addEventListener('keydown', pressed);
        return () => removeEventListener('keydown', pressed);
    }, []);
}

render(<App />, document.getElementById('app')!);
