// How JSON is written for people.

import { expect, test } from '@playwright/test';
import { pretty } from '../src/json';

test('a character that turns the direction of a text is written as its escape', () => {
    const value = { 'to\u2066': 'annex \u202egnp.exe\u202c', plain: 'مرحبا' };
    const written = pretty(value);
    expect(written).toBe('{"to\\u2066": "annex \\u202egnp.exe\\u202c", "plain": "مرحبا"}');
    expect(JSON.parse(written)).toEqual(value);
});
