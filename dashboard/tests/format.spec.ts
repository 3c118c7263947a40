// How numbers and times are written for people.

import { expect, test } from '@playwright/test';
import { moment } from '../src/format';

test('a time has its day if that is not today, and its year if that is another one', () => {
    // By the clock of the machine, as the page shows it.
    const now = new Date(2026, 0, 31, 8, 0, 0);
    const shown = (...date: [number, number, number, number, number, number]) => moment(new Date(...date).toISOString(), now);
    expect(shown(2026, 0, 31, 5, 6, 7)).toBe('05:06:07');
    expect(shown(2026, 10, 30, 5, 0, 0)).toBe('30 Nov 05:00:00');
    expect(shown(2025, 10, 30, 5, 0, 0)).toBe('30 Nov 2025 05:00:00');
    expect(shown(2099, 10, 30, 5, 0, 0)).toBe('30 Nov 2099 05:00:00');
    expect(moment('never', now)).toBe('never');
});
