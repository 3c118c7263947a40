// What axe finds on a page that is serious: by all of its rules, or by those that are named.

import axe from 'axe-core';
import type { Page } from '@playwright/test';

export async function serious(page: Page, rules?: string[]): Promise<string[]> {
    if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(axe.source);
    const found = await page.evaluate(
        (values) => (window as unknown as { axe: typeof axe }).axe.run(values ? { runOnly: values } : {}),
        rules,
    );
    return found.violations
        .filter(({ impact }) => impact === 'serious' || impact === 'critical')
        .map(({ id, nodes }) => `${id}: ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`).join('; ')}`);
}
