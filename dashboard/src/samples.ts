// The samples that the charts show. The page collects them itself, from `/v1/stats`, for as long as it is open.

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
    accepted: [] as (number | null)[],
    succeeded: [] as (number | null)[],
    failed: [] as (number | null)[],
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
        const none = { waiting: null, dispatched: null, running: null, oldest: null, accepted: null, succeeded: null, failed: null };
        push(last + 1, none);
    }
    const minute = stats.rates['1m'];
    push(now, {
        waiting: stats.jobs.CREATED - stats.delayed,
        dispatched: stats.jobs.DISPATCHED,
        running: stats.jobs.RUNNING,
        oldest: (stats.oldest_waiting_ms ?? 0) / 1_000,
        accepted: minute.accepted_per_second,
        succeeded: minute.finished_per_second.succeeded,
        failed: minute.finished_per_second.failed + minute.finished_per_second.timed_out,
    });
}
