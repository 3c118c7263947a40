// Reads and writes JSON without losing digits: a payload may hold numbers that JavaScript cannot, and be nested as deeply as its
// submitter liked.

/** Arrays and objects within more others than this stay as they were written: reading and printing them needs a stack. */
const DEPTH_MAX = 200;

/** A number that JavaScript cannot hold, or a value that is nested too deeply, as it was written. */
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
    const { shallow, cut } = cutDeep(text);
    const reviver = (_key: string, value: unknown, context?: Context): unknown => {
        const source = context?.source;
        if (typeof value === 'number' && source !== undefined && !Number.isSafeInteger(value) && String(value) !== source) {
            return new Exact(source);
        }
        return (typeof value === 'string' ? cut.get(value) : undefined) ?? value;
    };
    return JSON.parse(shallow, reviver as (key: string, value: unknown) => unknown);
}

/** The text with a string in the place of each value that is nested too deeply, and what these strings stand for. */
function cutDeep(text: string): { shallow: string; cut: Map<string, Exact> } {
    const cut = new Map<string, Exact>();
    // No text has these by chance, or can know them.
    const mark = crypto.getRandomValues(new Uint32Array(4)).join('-');
    let [shallow, copied, depth, start] = ['', 0, 0, 0];
    for (let at = 0; at < text.length; at += 1) {
        switch (text[at]) {
            case '"':
                for (at += 1; at < text.length && text[at] !== '"'; at += 1) if (text[at] === '\\') at += 1;
                break;
            case '[':
            case '{':
                depth += 1;
                if (depth === DEPTH_MAX + 1) start = at;
                break;
            case ']':
            case '}':
                if (depth === DEPTH_MAX + 1) {
                    const name = `${mark} ${cut.size}`;
                    cut.set(name, new Exact(text.slice(start, at + 1)));
                    shallow += `${text.slice(copied, start)}"${name}"`;
                    copied = at + 1;
                }
                depth -= 1;
                break;
        }
    }
    return { shallow: shallow + text.slice(copied), cut };
}

/** Whether a text is a JSON object. */
export function isObject(text: string): boolean {
    try {
        const value = parse(text);
        return typeof value === 'object' && value !== null && !Array.isArray(value) && !(value instanceof Exact);
    } catch {
        return false;
    }
}

/** JSON of an object that has fields, with one more, whose value is this JSON, as it was written. */
export function withField(object: object, name: string, json: string): string {
    return `${JSON.stringify(object).slice(0, -1)},${JSON.stringify(name)}:${json}}`;
}

/** The same JSON without characters that turn the direction of what follows: with one, `gnp.exe` reads as `exe.png`. */
function unturned(json: string): string {
    return json.replace(/[\u202a-\u202e\u2066-\u2069]/g, (mark) => `\\u${mark.charCodeAt(0).toString(16)}`);
}

/** JSON for people: indented, and short arrays and objects on one line. */
export function pretty(value: unknown, indent = ''): string {
    if (value instanceof Exact) return unturned(value.text);
    if (value === null || typeof value !== 'object') return unturned(JSON.stringify(value) ?? 'null');
    const inner = `${indent}  `;
    const parts = Array.isArray(value)
        ? value.map((item) => pretty(item, inner))
        : Object.entries(value).map(([key, item]) => `${unturned(JSON.stringify(key))}: ${pretty(item, inner)}`);
    const [open, close] = Array.isArray(value) ? ['[', ']'] : ['{', '}'];
    if (parts.length === 0) return open + close;
    const line = `${open}${parts.join(', ')}${close}`;
    if (line.length <= 64 && !line.includes('\n')) return line;
    return `${open}\n${parts.map((part) => inner + part).join(',\n')}\n${indent}${close}`;
}
