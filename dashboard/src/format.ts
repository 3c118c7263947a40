// Numbers, times and names for people.

const whole = new Intl.NumberFormat('en-US');

export function count(value: unknown): string {
    return typeof value === 'number' || typeof value === 'bigint' ? whole.format(value) : String(value);
}

/** So many things, or one: `1 job`, `1,500 jobs`. */
export function counted(number: number, one: string, many = `${one}s`): string {
    return `${count(number)} ${number === 1 ? one : many}`;
}

/** A whole number as people write it, also with the commas that `count` writes; undefined where the text is none. */
export function wholeOf(text: string): number | undefined {
    return /^(\d+|\d{1,3}(,\d{3})+)$/.test(text) ? Number(text.replaceAll(',', '')) : undefined;
}

export function rate(value: number): string {
    if (value === 0) return '0';
    if (value < 0.01) return '< 0.01';
    return value < 10 ? value.toFixed(2) : value < 100 ? value.toFixed(1) : whole.format(Math.round(value));
}

const UNITS: [string, number][] = [['d', 86_400], ['h', 3_600], ['min', 60], ['s', 1]];

/** A length of time in two units at most: `4.2 s`, `3 min 5 s`, `2 d 4 h`. */
export function length(ms: number): string {
    if (ms < 1_000) return `${Math.max(0, Math.round(ms))} ms`;
    const seconds = ms / 1_000;
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    if (seconds < 60) return `${Math.round(seconds)} s`;
    const at = UNITS.findIndex(([, size]) => seconds >= size);
    const [large, small] = [UNITS[at]!, UNITS[at + 1]!];
    const first = Math.floor(seconds / large[1]);
    const second = Math.floor((seconds % large[1]) / small[1]);
    return second === 0 ? `${first} ${large[0]}` : `${first} ${large[0]} ${second} ${small[0]}`;
}

/** A length of time in one unit, for what grows while one reads: `3 min`. */
export function age(ms: number): string {
    return ms < 1_000 ? '0 s' : ms < 10_000 ? `${Math.round(ms / 1_000)} s` : length(ms).split(' ').slice(0, 2).join(' ');
}

export function between(from: string, to: string): string {
    return length(Date.parse(to) - Date.parse(from));
}

const time = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const day = new Intl.DateTimeFormat('en-GB', { day: '2-digit', month: 'short' });
const dayOfYear = new Intl.DateTimeFormat('en-GB', { day: '2-digit', month: 'short', year: 'numeric' });

/** The time, with its day if that is not today, and with its year if that is not this one. */
export function moment(text: string, now = new Date()): string {
    const date = new Date(text);
    if (Number.isNaN(date.getTime())) return text;
    if (date.toDateString() === now.toDateString()) return time.format(date);
    const shown = date.getFullYear() === now.getFullYear() ? day : dayOfYear;
    return `${shown.format(date)} ${time.format(date)}`;
}

/** The steps of an axis of lengths of time, in seconds: each is a whole number of a unit. */
export const TIME_STEPS = [
    ...[1, 2, 5, 10, 15, 30],
    ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60),
    ...[1, 2, 3, 6, 12].map((hours) => hours * 3_600),
    ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000].map((days) => days * 86_400),
];

/** The label of such an axis at so many seconds, exact, in the unit of its step: `90 s`, `4 min`. */
export function atStep(seconds: number, step: number): string {
    const [unit, size] = UNITS.find(([, size]) => step % size === 0)!;
    return seconds === 0 ? '0' : `${whole.format(seconds / size)} ${unit}`;
}

/** The time of day of so many seconds since 1970. */
export function clock(seconds: number): string {
    return time.format(new Date(seconds * 1_000));
}

/** The part of an id that tells it from others at a glance: ids made in the same second begin alike. */
export function tailOf(id: string): string {
    return /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(id) ? id.slice(-12) : id;
}
