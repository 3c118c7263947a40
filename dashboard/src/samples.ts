// What the charts show. Jobs per second come from the memory of the instances, which goes back 15 minutes. The samples of what
// waits and runs are collected by the page itself, for as long as it is open.

import type { Stats } from './shapes';

const SAMPLES_MAX = 1_200;
/** A longer time between two samples is shown as a gap, in seconds. */
const GAP_S = 15;

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

export function sample(stats: Stats, now = Date.now() / 1_000): void {
    const last = series.times.at(-1);
    if (last !== undefined && now - last < 0.5) return;
    if (last !== undefined && now - last > GAP_S) {
        const none = { waiting: null, dispatched: null, running: null, oldest: null };
        push(last + 1, none);
    }
    push(now, {
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
