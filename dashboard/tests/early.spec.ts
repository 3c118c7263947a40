// What happens in the first moments of a page: between its first nodes and what it does once it is painted, which a busy browser may
// put off for seconds. No daemon is behind these pages.

import { expect, test, type Page } from '@playwright/test';
import { open } from './longest';

/** Does something in the moment in which the page has an element for the first time. */
async function onceThere(page: Page, selector: string, act: 'goes to the signers' | 'types'): Promise<void> {
    await page.addInitScript(([selector, act]) => {
        const observer = new MutationObserver(() => {
            const found = document.querySelector(selector!);
            if (found === null) return;
            observer.disconnect();
            if (act === 'goes to the signers') location.hash = '#/signers';
            if (found instanceof HTMLInputElement) {
                found.value = 'test';
                found.dispatchEvent(new Event('input', { bubbles: true }));
            }
        });
        observer.observe(document, { childList: true, subtree: true });
    }, [selector, act]);
}

test('an address that changes before the page is painted is not missed', async ({ page }) => {
    await onceThere(page, 'main h1', 'goes to the signers');
    await open(page, '#/cluster');
    await expect(page.locator('main h1')).toHaveText('Signers');
});

test('what is typed into a filter before the page is painted stays', async ({ page }) => {
    await onceThere(page, '#filter-owner', 'types');
    await open(page, '#/cluster');
    await expect(page.locator('main')).toContainText('(this one)');
    await expect(page.locator('#filter-owner')).toHaveValue('test');
});
