// The daemon's clock, as its answers tell it: ages are by it, since the browser's clock may be wrong.

/** Each answer says when it was made, and was under way for a while: the median of some is near the truth. */
const ANSWERS = 9;
/** The header `Date` has whole seconds, so a smaller difference says nothing. */
const DIFFERENCE_MS_MIN = 2_000;

/** By how much the daemon's clock is ahead of the browser's, by each of the last answers. */
const differences: number[] = [];
let ahead = 0;

/** Takes the header `Date` of an answer. */
export function heardDate(header: string | null, now = Date.now()): void {
    const second = Date.parse(header ?? '');
    if (Number.isNaN(second)) return;
    // In the middle of its second.
    differences.push(second + 500 - now);
    if (differences.length > ANSWERS) differences.shift();
    const sorted = [...differences].sort((a, b) => a - b);
    const median = sorted[Math.floor(sorted.length / 2)]!;
    ahead = Math.abs(median) < DIFFERENCE_MS_MIN ? 0 : median;
}

/** The time by the daemon's clock, at a time by the browser's. */
export function daemonTime(now = Date.now()): number {
    return now + ahead;
}
