// Reads and writes JSON without losing digits: a payload may hold numbers that JavaScript cannot.

/** A number that JavaScript cannot hold, as it was written. */
export class Exact {
    constructor(readonly text: string) {}
    toString(): string {
        return this.text;
    }
    toJSON(): string {
        return this.text;
    }
}

type Context = { source?: string };

export function parse(text: string): unknown {
    const reviver = (_key: string, value: unknown, context?: Context): unknown => {
        const source = context?.source;
        if (typeof value === 'number' && source !== undefined && !Number.isSafeInteger(value) && String(value) !== source) {
            return new Exact(source);
        }
        return value;
    };
    return JSON.parse(text, reviver as (key: string, value: unknown) => unknown);
}

/** JSON for people: indented, and short arrays and objects on one line. */
export function pretty(value: unknown, indent = ''): string {
    if (value instanceof Exact) return value.text;
    if (value === null || typeof value !== 'object') return JSON.stringify(value) ?? 'null';
    const inner = `${indent}  `;
    const parts = Array.isArray(value)
        ? value.map((item) => pretty(item, inner))
        : Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${pretty(item, inner)}`);
    const [open, close] = Array.isArray(value) ? ['[', ']'] : ['{', '}'];
    if (parts.length === 0) return open + close;
    const line = `${open}${parts.join(', ')}${close}`;
    if (line.length <= 64 && !line.includes('\n')) return line;
    return `${open}\n${parts.map((part) => inner + part).join(',\n')}\n${indent}${close}`;
}
