// What the charts of the overview collect.

import { expect, test } from '@playwright/test';
import { sample, series } from '../src/samples';
import type { Stats } from '../src/shapes';

const NOW = 1_800_000_000;

function counted(ms: number, running: number): Stats {
    return { jobs: { CREATED: 0, DISPATCHED: 0, RUNNING: running, FINISHED: 0 }, delayed: 0, oldest_waiting_ms: null, counted_ms_ago: ms } as Stats;
}

const shown = () => series.times.map((time, at) => [time - NOW, series.running[at]]);

test('a sample is at the time of its count, and a count that is answered again is none', () => {
    sample(counted(1_000, 5), NOW);
    expect(shown()).toEqual([[-1, 5]]);
    // The daemon cannot count; an answer that is shared is up to a second older than it says.
    for (let at = 3; at <= 60; at += 3) sample(counted(1_000 * (at + 1) - (at % 2) * 900, 5), NOW + at);
    expect(shown()).toEqual([[-1, 5]]);
    sample(counted(2_000, 7), NOW + 63);
    expect(shown()).toEqual([[-1, 5], [61, 7]]);
    // An instance that counted earlier answers.
    sample(counted(9_000, 6), NOW + 66);
    expect(shown()).toEqual([[-1, 5], [61, 7]]);
    // The page was hidden, and then the first answers have an old count.
    sample(counted(62_000, 7), NOW + 123);
    sample(counted(0, 8), NOW + 126);
    expect(shown()).toEqual([[-1, 5], [61, 7], [62, null], [126, 8]]);
    // Nothing was counted for long.
    sample(counted(14_000, 8), NOW + 140);
    for (let at = 154; at < 400; at += 14) sample(counted(1_000 * (at - 126), 8), NOW + at);
    sample(counted(0, 9), NOW + 401);
    expect(shown().slice(3)).toEqual([[126, 8], [127, null], [401, 9]]);
    // The clock of the browser is set back by an hour.
    sample(counted(1_000, 3), NOW - 3_199);
    expect(shown()).toEqual([[-3_200, 3]]);
    expect(Object.values(series).map((list) => list.length)).toEqual([1, 1, 1, 1, 1]);
});
