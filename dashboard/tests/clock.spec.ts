// What the page knows of the daemon's clock.

import { expect, test } from '@playwright/test';
import { daemonTime, heardDate } from '../src/clock';

const NOW = Date.parse('2026-01-31T08:00:00Z');

function answers(header: string | null, count = 1): void {
    for (let at = 0; at < count; at += 1) heardDate(header, NOW);
}

test('the daemon\u2019s time is that of its answers, small differences and single late answers left out', () => {
    answers(null);
    answers('yesterday');
    expect(daemonTime(NOW)).toBe(NOW);
    answers('Sat, 31 Jan 2026 08:00:01 GMT');
    expect(daemonTime(NOW)).toBe(NOW);
    answers('Sat, 31 Jan 2026 07:00:00 GMT', 9);
    expect(daemonTime(NOW)).toBe(NOW - 3_600_000 + 500);
    answers('Sat, 31 Jan 2026 06:30:00 GMT', 4);
    expect(daemonTime(NOW)).toBe(NOW - 3_600_000 + 500);
    answers('Sat, 31 Jan 2026 09:00:00 GMT', 9);
    expect(daemonTime(NOW + 5)).toBe(NOW + 5 + 3_600_000 + 500);
    answers('Sat, 31 Jan 2026 07:59:58 GMT', 9);
    expect(daemonTime(NOW)).toBe(NOW);
});
