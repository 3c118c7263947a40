// Routes live in the fragment: `#/jobs?state=CREATED`. So a page and its filters can be bookmarked and sent to others,
// and the daemon serves one path.

import { useLayoutEffect, useState } from 'preact/hooks';
import { withQuery, type Query } from './api';

export type Place = { parts: string[]; query: URLSearchParams };

function read(): Place {
    const text = location.hash.replace(/^#\/?/, '');
    const [path = '', query = ''] = text.split('?', 2);
    const parts = path.split('/').filter((part) => part !== '').map((part) => {
        try {
            return decodeURIComponent(part);
        } catch {
            return part;
        }
    });
    return { parts, query: new URLSearchParams(query) };
}

export function usePlace(): Place {
    const [place, set] = useState(read);
    // With what shows the place, not after it: an address that changes in between would be missed.
    useLayoutEffect(() => {
        const changed = () => set(read());
        addEventListener('hashchange', changed);
        return () => removeEventListener('hashchange', changed);
    }, []);
    return place;
}

/** The address of a page: `link(['jobs', id])`. */
export function link(parts: string[], query: Query = {}): string {
    return `#/${withQuery(parts.map(encodeURIComponent).join('/'), query)}`;
}

export function go(parts: string[], query: Query = {}): void {
    location.hash = link(parts, query);
}

/** The address with other filters. */
function filtered(changes: Query): string {
    const { parts, query } = read();
    const all: Query = Object.fromEntries(query);
    return link(parts, { ...all, ...changes });
}

/** Changes filters in the address; going back leads past them. */
export function setFilters(changes: Query): void {
    location.replace(filtered(changes));
}

/** Goes to the page of a list that begins at a cursor, or to its first; going back leads to the page before. */
export function turnTo(cursor: string | undefined): void {
    location.hash = filtered({ cursor });
}
