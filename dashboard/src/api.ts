// Requests to the daemon. The token is in session storage and leaves in a header only; no other origin is asked.

import { heardDate } from './clock';
import { parse } from './json';
import { keep, kept } from './kept';
import type { Checks } from './shapes';

const TOKEN = 'fencepost.token';
const TIMEOUT_MS = 15_000;
/** The daemon writes to a stream every 15 s at least; one that is silent for longer than this is lost. */
const SILENCE_MS_MAX = 45_000;

/** A refusal, as the daemon words it; or `unreachable` where no answer came. */
export class Refusal extends Error {
    constructor(
        readonly status: number,
        readonly code: string,
        readonly detail: string,
        readonly requestId?: string,
        /** What `/readyz` found, where it is why. */
        readonly checks?: Checks,
    ) {
        super(`${code}: ${detail}`);
    }
}

/** What was thrown, as a refusal. */
export function refusal(thrown: unknown): Refusal {
    return thrown instanceof Refusal ? thrown : new Refusal(0, 'defect', String(thrown));
}

export function token(): string {
    return kept('sessionStorage', TOKEN) ?? '';
}

export function setToken(text: string): void {
    keep('sessionStorage', TOKEN, text === '' ? undefined : text);
}

/** Told when the daemon knows the token no more. */
let onUnauthorized: (() => void) | undefined;
export function whenUnauthorized(listener: () => void): void {
    onUnauthorized = listener;
}

export type Query = Record<string, string | number | boolean | undefined>;

/** A path with each part encoded: `path('/v1/jobs', id)`. */
export function path(base: string, ...parts: (string | number | { toString(): string })[]): string {
    return [base, ...parts.map((part) => encodeURIComponent(String(part)))].join('/');
}

export function withQuery(target: string, query: Query = {}): string {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
        if (value !== undefined && value !== '') params.set(name, String(value));
    }
    const text = params.toString();
    return text === '' ? target : `${target}?${text}`;
}

function headers(extra: Record<string, string> = {}): Record<string, string> {
    const known = token();
    return known === '' ? extra : { ...extra, authorization: `Bearer ${known}` };
}

/** Why there is no whole answer: what was thrown itself, if the page has given the request up. */
function unanswered(thrown: unknown, signal: AbortSignal, why: string): unknown {
    const isLate = (signal.reason as Error | undefined)?.name === 'TimeoutError';
    if (signal.aborted && !isLate) return thrown;
    return new Refusal(0, 'unreachable', isLate ? `no answer within ${TIMEOUT_MS / 1000} s` : why);
}

async function ask(method: string, target: string, signal: AbortSignal, init: RequestInit): Promise<Response> {
    const sent = token();
    let response: Response;
    try {
        response = await fetch(target, { method, cache: 'no-store', credentials: 'omit', redirect: 'manual', signal, ...init });
    } catch (thrown) {
        throw unanswered(thrown, signal, 'the daemon cannot be reached');
    }
    heardDate(response.headers.get('date'));
    // The policy of the page forbids other origins, and a token is for one daemon.
    if (response.type === 'opaqueredirect') {
        throw new Refusal(307, 'redirected', 'another instance owns this, and this one redirects (worker_queue.on_misroute); open the other instance');
    }
    if (response.ok) return response;
    const refused = await refusalOf(response);
    // One of an earlier token says nothing of the one that the page has by now.
    if (refused.status === 401 && sent === token()) onUnauthorized?.();
    throw refused;
}

/** The whole text of an answer. */
async function textOf(response: Response, signal: AbortSignal): Promise<string> {
    try {
        return await response.text();
    } catch (thrown) {
        throw unanswered(thrown, signal, 'the answer broke off');
    }
}

async function refusalOf(response: Response): Promise<Refusal> {
    const text = await response.text().catch(() => '');
    try {
        const problem = parse(text) as { code?: string; detail?: string; title?: string; request_id?: string; checks?: Checks };
        const detail = problem.detail ?? problem.title ?? '';
        return new Refusal(response.status, problem.code ?? 'unknown', detail, problem.request_id, problem.checks);
    } catch {
        return new Refusal(response.status, 'unknown', `the answer has the status ${response.status}`);
    }
}

function limited(signal: AbortSignal | undefined): AbortSignal {
    const late = AbortSignal.timeout(TIMEOUT_MS);
    return signal === undefined ? late : AbortSignal.any([signal, late]);
}

/** Answers of this age are shared with other pages, except right after this page has changed something, or has heard of a change. */
const SHARED_AGE_S = 1;
let changedAt = -Infinity;

function accepted(heardAt: number): Record<string, string> {
    const isFresh = performance.now() - Math.max(changedAt, heardAt) < 2_000 * SHARED_AGE_S;
    return isFresh ? {} : { 'cache-control': `max-age=${SHARED_AGE_S}` };
}

/** Reads. The answer is no older than what the page has heard, at `heardAt` for the last time, of what it asks for. */
export async function get<T>(target: string, query?: Query, signal?: AbortSignal, heardAt = -Infinity): Promise<T> {
    const both = limited(signal);
    const response = await ask('GET', withQuery(target, query), both, { headers: headers(accepted(heardAt)) });
    return parse(await textOf(response, both)) as T;
}

type Method = 'POST' | 'PUT' | 'DELETE';

/**
 * A request that changes something. One that creates has an idempotency `key`: repeated with the same one, it creates nothing more.
 * A body that is a text is JSON already.
 */
export async function send<T>(method: Method, target: string, body?: unknown, key?: string): Promise<T> {
    const extra: Record<string, string> = {};
    if (body !== undefined) extra['content-type'] = 'application/json';
    if (key !== undefined) extra['idempotency-key'] = key;
    const init: RequestInit = { headers: headers(extra) };
    const late = limited(undefined);
    if (body !== undefined) init.body = typeof body === 'string' ? body : JSON.stringify(body);
    try {
        const text = await textOf(await ask(method, target, late, init), late);
        return (text === '' ? undefined : parse(text)) as T;
    } finally {
        changedAt = performance.now();
    }
}

export function idempotencyKey(): string {
    const random = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0'));
    return `dashboard-${random.join('')}`;
}

export type ServerEvent = { event: string; data: unknown };

/** Reads server-sent events until the stream ends. Resolves then; rejects with a `Refusal` where it cannot be opened. */
export async function stream(
    target: string,
    signal: AbortSignal,
    onOpen: () => void,
    onEvent: (event: ServerEvent) => void,
): Promise<void> {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
    const both = AbortSignal.any([signal, silence.signal]);
    try {
        const response = await ask('GET', target, both, { headers: headers({ accept: 'text/event-stream' }) });
        await read(response, () => {
            clearTimeout(timer);
            timer = setTimeout(() => silence.abort(), SILENCE_MS_MAX);
        });
    } finally {
        clearTimeout(timer);
    }

    async function read(response: Response, onBytes: () => void): Promise<void> {
        if (response.status === 204 || response.body === null) return;
        onOpen();
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = '';
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return;
            onBytes();
            rest += value;
            const blocks = rest.split('\n\n');
            rest = blocks.pop() ?? '';
            for (const block of blocks) {
                const event = decode(block);
                if (event !== undefined) onEvent(event);
            }
        }
    }
}

function decode(block: string): ServerEvent | undefined {
    let event = 'message';
    const data: string[] = [];
    for (const line of block.split('\n')) {
        if (line.startsWith('event:')) event = line.slice(6).trim();
        else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
    }
    return data.length === 0 ? undefined : { event, data: parse(data.join('\n')) };
}
