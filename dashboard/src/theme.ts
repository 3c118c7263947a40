// Light or dark: as the system says, or as the switch does. The choice is kept in this browser.

import { useLayoutEffect, useState } from 'preact/hooks';
import { keep, kept } from './kept';

export type Choice = 'auto' | 'light' | 'dark';
const KEY = 'fencepost.theme';
const dark = matchMedia('(prefers-color-scheme: dark)');
const listeners = new Set<() => void>();

export function choice(): Choice {
    const chosen = kept('localStorage', KEY);
    return chosen === 'light' || chosen === 'dark' ? chosen : 'auto';
}

function shown(): 'light' | 'dark' {
    const chosen = choice();
    return chosen === 'auto' ? (dark.matches ? 'dark' : 'light') : chosen;
}

function apply(): void {
    document.documentElement.dataset.theme = shown();
    for (const listener of listeners) listener();
}

dark.addEventListener('change', apply);
apply();

export function choose(next: Choice): void {
    keep('localStorage', KEY, next === 'auto' ? undefined : next);
    apply();
}

export function useTheme(): 'light' | 'dark' {
    const [theme, set] = useState(shown);
    useLayoutEffect(() => {
        const changed = () => set(shown());
        listeners.add(changed);
        return () => void listeners.delete(changed);
    }, []);
    return theme;
}
