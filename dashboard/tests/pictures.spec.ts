// Pictures of every page, in both themes, narrow and wide: for the documents, and to look at. Not part of the tests.

import { mkdirSync } from 'node:fs';
import { resolve } from 'node:path';
import { pages } from './pages';
import { enter, expect, test, visit } from './world';

const OUT = resolve(process.env.PICTURES_OUT ?? '../target/dashboard-pictures');

test('pictures', async ({ page, world }) => {
    test.setTimeout(300_000);
    mkdirSync(OUT, { recursive: true });
    for (const theme of ['light', 'dark'] as const) {
        await page.emulateMedia({ colorScheme: theme });
        for (const width of [1440, 1200, 390]) {
            await page.setViewportSize({ width, height: width === 390 ? 844 : 900 });
            await enter(page, world, 'root');
            for (const [name, address, [text]] of pages(world)) {
                await visit(page, address);
                await expect(page.locator('main'), name).toContainText(text!);
                // The charts need some samples.
                if (name === 'overview') await page.waitForTimeout(width === 1440 ? 20_000 : 4_000);
                await page.screenshot({ path: `${OUT}/${name.replaceAll(' ', '-')}-${theme}-${width}.png`, fullPage: true });
            }
        }
    }
});

test('the picture of the README', async ({ page, world: { daemon }, world }) => {
    test.setTimeout(180_000);
    mkdirSync(OUT, { recursive: true });
    await page.setViewportSize({ width: 1440, height: 900 });
    await daemon.ask('POST', '/v1/pools/spare/resume');
    await enter(page, world, 'root');
    const until = Date.now() + 70_000;
    for (let round = 0; Date.now() < until; round += 1) {
        // Waves, so that the charts have a shape.
        const many = Math.round(4 + 4 * Math.sin(round / 9));
        for (let at = 0; at < many; at += 1) {
            const isBad = round % 11 === 0 && at === 0;
            const pool = at % 3 === 0 ? 'batch' : 'zh-en';
            await daemon.submit({ payload: isBad ? 'fail' : 'pause', pool, max_attempts: 1 });
        }
        await page.waitForTimeout(700);
    }
    await page.screenshot({ path: `${OUT}/README.png` });
});
