// Texts that the browser keeps for the page: for this tab, or for all pages of this daemon. A browser that its user has told to keep
// nothing throws at the mere look; there a text lasts as long as the page does.

type Area = 'sessionStorage' | 'localStorage';

const unkept = new Map<string, string>();

function storage(area: Area): Storage | undefined {
    try {
        return window[area];
    } catch {
        return undefined;
    }
}

export function kept(area: Area, name: string): string | undefined {
    const found = storage(area);
    return (found ? found.getItem(name) : unkept.get(name)) ?? undefined;
}

/** Keeps a text, or without one keeps none. */
export function keep(area: Area, name: string, text?: string): void {
    const found = storage(area);
    if (text === undefined) {
        found?.removeItem(name);
        unkept.delete(name);
    } else if (found) {
        found.setItem(name, text);
    } else {
        unkept.set(name, text);
    }
}
