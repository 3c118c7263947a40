// The screen of a phone: no table, card, dialog or page is wider, whatever its values are. The answers are made up, so that each
// state is there that a daemon may be in.

import { expect, test, type Page } from '@playwright/test';
import { BULKS, open, PAGES, PLANS } from './longest';

const WIDTHS = [390, 360, 320];
const [WIDEST] = WIDTHS;
/** The time stands still, so that all ages are the same in each run. */
const NOW = new Date('2026-12-30T12:34:56Z');

test.beforeEach(async ({ page }) => {
    await page.clock.setFixedTime(NOW);
});

/** What does not fit into its box, or into the screen. Boxes that cut their content on purpose are left out. */
function tooWide(page: Page): Promise<string[]> {
    return page.evaluate(() => {
        const screen = document.documentElement.clientWidth;
        const isCut = (element: Element) => getComputedStyle(element).overflowX === 'hidden';
        const called = (element: Element) => `${element.tagName} ${element.className} of ${element.closest('[aria-label]')?.getAttribute('aria-label')}`;
        return [...document.querySelectorAll<HTMLElement>('body, body *:not(input, select, .skip, .unseen, .uplot *)')]
            .filter((element) => element.checkVisibility())
            .flatMap((element) => {
                const { left, right } = element.getBoundingClientRect();
                const isOut = !isCut(element.parentElement!) && (left < -1 || right > screen + 1);
                const isFull = !isCut(element) && element.clientWidth > 0 && element.scrollWidth > element.clientWidth;
                const size = isOut ? `from ${left} to ${right} of ${screen}` : `${element.scrollWidth} of ${element.clientWidth}`;
                return isOut || isFull ? [`${called(element)}: ${size}`] : [];
            });
    });
}

/** The numbers in tables and figures that go on in another line. */
function broken(page: Page): Promise<string[]> {
    return page.evaluate(() => {
        const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        const found: string[] = [];
        while (texts.nextNode()) {
            const { parentElement: parent, data } = texts.currentNode as Text;
            if (!parent!.closest('td, .figure') || !/^[\d,]{1,21}$/.test(data)) continue;
            const range = document.createRange();
            range.selectNode(texts.currentNode);
            if (range.getClientRects().length > 1) found.push(data);
        }
        return found;
    });
}

async function expectToFit(page: Page, name: string): Promise<void> {
    for (const width of WIDTHS) {
        await page.setViewportSize({ width, height: 800 });
        // A chart takes its new size when the browser tells it of that.
        await expect.poll(() => tooWide(page), `${name} at ${width} pixels`).toEqual([]);
        expect(await broken(page), `${name} at ${width} pixels`).toEqual([]);
    }
}

for (const [name, address, texts, actions] of PAGES) {
    test(`${name}: all that the page and its dialogs show fits on a phone`, async ({ page }) => {
        await page.setViewportSize({ width: WIDEST!, height: 800 });
        await open(page, address);
        for (const text of texts) await expect(page.locator('main')).toContainText(text);
        await expect(page.locator('.loading')).toHaveCount(0);
        await expectToFit(page, name);
        const dialog = page.getByRole('dialog');
        for (const action of actions) {
            await page.locator('main').getByRole('button', { name: action, exact: true }).first().click();
            await expect(dialog).toBeVisible();
            await expect(dialog).not.toContainText('Counting');
            await expectToFit(page, action);
            await page.keyboard.press('Escape');
            await expect(dialog).toBeHidden();
        }
    });
}

test('a refusal fits into its dialog on a phone', async ({ page }) => {
    await page.setViewportSize({ width: WIDEST!, height: 800 });
    await open(page, '#/nodes');
    await page.getByRole('button', { name: 'Drain', exact: true }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByRole('button', { name: 'Drain', exact: true }).click();
    await expect(dialog.getByRole('alert')).toContainText('not_found');
    await expectToFit(page, 'the refusal');
});

test('the menu and a header that reconnects fit on a phone', async ({ page }) => {
    await page.setViewportSize({ width: WIDEST!, height: 800 });
    await open(page, '#/plans');
    await expect(page.getByRole('status')).toHaveText(['live', /The daemon has the version/]);
    await page.clock.setFixedTime(new Date(NOW.getTime() + 7_740_000));
    await page.route('**/v1/**', (route) => route.abort());
    await expect(page.getByRole('banner')).toContainText('last answer 2 h 9 min ago');
    await page.locator('button.menu').click();
    await expect(page.getByRole('navigation', { name: 'Pages', exact: true })).toBeVisible();
    await expectToFit(page, 'the header');
});

test('the mark of a plan makes its row no higher on a phone', async ({ page }) => {
    // All of a row would be in one line, but for the room of the mark.
    const plans = PLANS.map((plan) => ({ ...plan, progress: { total: 3, succeeded: 1 } }));
    await page.setViewportSize({ width: WIDEST!, height: 800 });
    await page.route('**/v1/plans?*', (route) => route.fulfill({ json: { items: plans, next_cursor: 'c' } }));
    await open(page, '#/plans');
    const rows = page.locator('main tbody tr');
    const heights = () => rows.evaluateAll((all) => all.map((row) => row.getBoundingClientRect().height));
    await expect(rows.first()).toContainText('1 of 3');
    const before = await heights();
    const begun = { ...plans[0], id: 'begun' };
    await page.route('**/v1/plans?*', (route) => route.fulfill({ json: { items: [begun], next_cursor: 'c' } }));
    await expect(rows.filter({ hasText: 'as of 12:34:56' })).toHaveCount(plans.length);
    for (const [at, height] of (await heights()).entries()) expect(height - before[at]!).toBeLessThan(1);
});

test('each state of a bulk operation fits on a phone, also with its mark, which makes no row higher', async ({ page }) => {
    const phone = { width: WIDEST!, height: 800 };
    await page.setViewportSize(phone);
    await open(page, '#/bulk');
    const rows = page.locator('main tbody tr');
    const heights = () => rows.evaluateAll((all) => all.map((row) => row.getBoundingClientRect().height));
    await page.getByRole('button', { name: 'Show 200 more' }).click();
    await expect(rows).toHaveCount(BULKS.length);
    await expectToFit(page, 'without marks');
    await page.setViewportSize(phone);
    const before = await heights();
    const grown = async () => Math.max(...(await heights()).map((height, at) => height - before[at]!));
    // The page ends before the first row by now.
    const begun = { ...BULKS[0]!, id: 'begun' };
    await page.route('**/v1/bulk?*', (route) => route.fulfill({ json: { items: [begun], next_cursor: 'c' } }));
    await expect(rows.filter({ hasText: 'as of 12:34:56' })).toHaveCount(BULKS.filter(({ finished_at }) => finished_at === null).length);
    expect(await grown()).toBeLessThan(1);
    await expectToFit(page, 'as of a moment');
    await page.route('**/v1/bulk?*', (route) => route.fulfill({ json: { items: [begun], next_cursor: null } }));
    await expect(rows.filter({ hasText: 'left the list' })).toHaveCount(BULKS.length);
    await page.setViewportSize(phone);
    expect(await grown()).toBeLessThan(1);
    await expectToFit(page, 'off the list');
});
