// Who the caller is, and what its token may do. Buttons that it may not press are not shown.

import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import type { Scope, Whoami } from './shapes';

export const Caller = createContext<Whoami | undefined>(undefined);

export function useCaller(): Whoami {
    return useContext(Caller)!;
}

export function useCan(scope: Scope): boolean {
    return useCaller().scopes.includes(scope);
}
