// What the charts show. Jobs per second come from the memory of the instances, which goes back 15 minutes. The samples of what
// waits and runs are collected by the page itself, for as long as it is open.

import type { Stats } from './shapes';

const SAMPLES_MAX = 1_200;
/** While the page asks for nothing for longer than this, the charts have a gap, in seconds. */
const GAP_S = 15;
/** So have they where counts are further apart. The daemon counts more seldom the longer a count takes. */
const COUNTS_GAP_S = 180;
/** The daemon begins a count every 3 s at most. Counts that seem closer are one: an answer is under way for a moment, or shared. */
const SAME_S = 2;

export const series = {
    times: [] as number[],
    waiting: [] as (number | null)[],
    dispatched: [] as (number | null)[],
    running: [] as (number | null)[],
    oldest: [] as (number | null)[],
};

/** Jobs per second, as the newest statistics have them. */
export const history = {
    times: [] as number[],
    accepted: [] as number[],
    succeeded: [] as number[],
    failed: [] as number[],
};

function push(time: number, values: Omit<{ [name in keyof typeof series]: number | null }, 'times'>): void {
    series.times.push(time);
    for (const [name, value] of Object.entries(values)) {
        (series[name as keyof typeof series] as (number | null)[]).push(value);
    }
    if (series.times.length > SAMPLES_MAX) {
        for (const list of Object.values(series)) list.shift();
    }
}

let askedAt = -Infinity;
let isGap = false;

/** Takes the counts of an answer, at the time when the daemon counted: while it cannot count, it answers the last counts again. */
export function sample(stats: Stats, now = Date.now() / 1_000): void {
    // The browser's clock was set back: what is there would be in the future.
    if (now < askedAt) for (const list of Object.values(series)) list.length = 0;
    if (now - askedAt > GAP_S) isGap = true;
    askedAt = now;
    const countedAt = now - stats.counted_ms_ago / 1_000;
    const last = series.times.at(-1);
    if (last !== undefined && countedAt - last < SAME_S) return;
    if (last !== undefined && (isGap || countedAt - last > COUNTS_GAP_S)) {
        const none = { waiting: null, dispatched: null, running: null, oldest: null };
        push(last + 1, none);
    }
    isGap = false;
    push(countedAt, {
        waiting: stats.jobs.CREATED - stats.delayed,
        dispatched: stats.jobs.DISPATCHED,
        running: stats.jobs.RUNNING,
        oldest: (stats.oldest_waiting_ms ?? 0) / 1_000,
    });
}

/** The rates of each step of the past. */
export function recall({ history: of }: Stats, now = Date.now() / 1_000): void {
    const step = of.step_ms / 1_000;
    const ended = now - of.ended_ms_ago / 1_000;
    const rates = (...lists: number[][]) => of.accepted.map((_, at) => lists.reduce((sum, list) => sum + (list[at] ?? 0), 0) / step);
    history.times = of.accepted.map((_, at) => ended - (of.accepted.length - 1 - at) * step);
    history.accepted = rates(of.accepted);
    history.succeeded = rates(of.succeeded);
    history.failed = rates(of.failed, of.timed_out);
}
