// The pages before a large cluster, which `loadtest large` makes: when they first paint, when they show data, and what their
// memory holds after an hour of polls. Part of `dashboard/test --large` only. Times are written down and not judged, since
// they are the machine's; that the pages show what they must, and that memory stays bounded, is.

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { expect, test, type Page } from '@playwright/test';

const OUT = resolve(process.env.LARGE_OUT ?? '../target/dashboard-large.json');
const [ORIGIN] = (process.env.FENCEPOST_URLS ?? '').split(',');
const ROUNDS = 5;
/** As `src/live.ts` has it, which only a browser can load. */
const POLL_MS = 3_000;
/** The polls of an hour, or as many as the environment says. */
const POLLS = Number(process.env.LARGE_POLLS ?? 3_600_000 / POLL_MS);
/** What a page may hold more after those polls than after its first ones. */
const GROWTH_BYTES_MAX = 4 * 1024 * 1024;
/** Polls after which a page has loaded all that it needs. */
const WARM_POLLS = Math.min(250, POLLS / 2);

const PAGES: [name: string, address: string, text: string][] = [
    ['overview', '#/', 'Oldest waiting job'],
    ['jobs', '#/jobs', 'CREATED'],
    ['waiting jobs of a tenant', '#/jobs?state=CREATED&tenant=waiting', 'CREATED'],
    ['finished jobs', '#/jobs?outcome=succeeded', 'succeeded'],
    ['nodes', '#/nodes', 'sim-'],
    ['node', '#/nodes/sim-0', 'of 4'],
    ['sessions', '#/sessions', 'Session'],
    ['signers', '#/signers', 'Signer'],
    ['plans', '#/plans', 'Plan'],
    ['cluster', '#/cluster', 'Leases'],
    ['audit', '#/audit', 'Audit'],
];

type Seen = { page: string; first_paint_ms: number[]; data_ms: number[] };
type Held = { page: string; polls: number; bytes_warm: number; bytes_last: number };

/** Adds a row to the file: a failed test begins a new process, which has no memory of the rows before. */
function write(row: Seen | Held): void {
    const rows = existsSync(OUT) ? JSON.parse(readFileSync(OUT, 'utf8')) : [];
    writeFileSync(OUT, `${JSON.stringify([...rows, row], null, 2)}\n`);
}

for (const [name, address, text] of PAGES) {
    test(`the page of ${name} paints and shows its data`, async ({ browser }) => {
        const row: Seen = { page: name, first_paint_ms: [], data_ms: [] };
        for (let round = 0; round < ROUNDS; round += 1) {
            // A browser that has nothing of the page yet.
            const context = await browser.newContext();
            const page = await context.newPage();
            await page.goto(`${ORIGIN}/${address}`);
            await expect(page.locator('main')).toContainText(text);
            const times = await page.evaluate(() => ({
                paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
                now: performance.now(),
            }));
            expect(times.paint, 'the page was painted').toBeDefined();
            row.first_paint_ms.push(Math.round(times.paint!));
            row.data_ms.push(Math.round(times.now));
            await context.close();
        }
        write(row);
    });
}

/** The bytes that the page's scripts hold, garbage apart. */
async function heap(page: Page): Promise<number> {
    const devtools = await page.context().newCDPSession(page);
    await devtools.send('HeapProfiler.collectGarbage');
    const { usedSize } = await devtools.send('Runtime.getHeapUsage');
    await devtools.detach();
    return usedSize;
}

for (const [name, address, text] of PAGES.filter(([name]) => ['overview', 'jobs', 'nodes', 'cluster'].includes(name))) {
    test(`the page of ${name} holds no more after an hour`, async ({ page }) => {
        test.setTimeout(1_800_000);
        let polls = 0;
        page.on('response', (response) => {
            if (response.url().includes('/v1/')) polls += 1;
        });
        // The page's timers follow a clock that the test moves, so that an hour takes minutes.
        await page.clock.install();
        await page.goto(`${ORIGIN}/${address}`);
        await page.clock.runFor(1_000);
        await expect(page.locator('main')).toContainText(text);
        const forward = async (count: number) => {
            for (let poll = 0; poll < count; poll += 1) {
                const before = polls;
                await page.clock.runFor(POLL_MS);
                await expect.poll(() => polls, { intervals: [5, 10, 20] }).toBeGreaterThan(before);
            }
        };
        await forward(WARM_POLLS);
        const warm = await heap(page);
        await forward(POLLS - WARM_POLLS);
        const last = await heap(page);
        write({ page: name, polls, bytes_warm: warm, bytes_last: last });
        expect(polls).toBeGreaterThanOrEqual(POLLS);
        expect(last - warm, `bytes that the page of ${name} holds more`).toBeLessThan(GROWTH_BYTES_MAX);
    });
}
