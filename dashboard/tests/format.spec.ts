// How numbers and times are written for people.

import { expect, test } from '@playwright/test';
import { atStep, counted, moment, TIME_STEPS } from '../src/format';

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

test('labels of an axis of lengths of time are exact, and in one unit', () => {
    const labels = (step: number) => [0, 1, 2, 3].map((times) => atStep(times * step, step));
    expect(labels(30)).toEqual(['0', '30 s', '60 s', '90 s']);
    expect(labels(300)).toEqual(['0', '5 min', '10 min', '15 min']);
    expect(labels(10_800)).toEqual(['0', '3 h', '6 h', '9 h']);
    expect(labels(86_400_000)).toEqual(['0', '1,000 d', '2,000 d', '3,000 d']);
    for (const step of TIME_STEPS) expect(atStep(step, step)).toMatch(/^[\d,]+ (s|min|h|d)$/);
});

test('one thing is no plural', () => {
    const shown = [0, 1, 2, 1_500].map((number) => counted(number, 'job'));
    expect(shown).toEqual(['0 jobs', '1 job', '2 jobs', '1,500 jobs']);
    expect(counted(1, 'stage is', 'stages are')).toBe('1 stage is');
});
