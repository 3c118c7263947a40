// Tables and figures: that all of them fits on the screen, what each row is about, and where the numbers lead.

import { pages } from './pages';
import { enter, expect, test, visit } from './world';
import type { Page } from '@playwright/test';

/** The tables of which a part is out of sight, or the page itself. */
function cutOff(page: Page): Promise<string[]> {
    return page.evaluate(() => {
        const boxes = [document.documentElement, ...document.querySelectorAll<HTMLElement>('main .scroll')];
        return boxes
            .filter((box) => box.scrollWidth > box.clientWidth)
            .map((box) => `${box.getAttribute('aria-label') ?? 'the page'}: ${box.scrollWidth} of ${box.clientWidth}`);
    });
}

const LONG = 'a-name-that-is-as-long-as-people-make-them-if-nobody-stops-them';

for (const width of [1440, 1200, 1101, 1024, 830, 390]) {
    test(`no table is cut off at ${width} pixels`, async ({ page, world: { daemon }, world }) => {
        const long = { payload: 'x', kind: LONG, tenant: LONG, pool: LONG, session: world.session };
        const { id } = await daemon.submit(long);
        await page.setViewportSize({ width, height: 900 });
        await enter(page, world, 'root');
        for (const [name, address, texts] of [...pages(world), ['jobs with long names', `#/jobs?kind=${LONG}`, [id]] as const]) {
            await visit(page, address);
            for (const text of texts) await expect(page.locator('main'), `${name} shows ${text}`).toContainText(text);
            expect.soft(await cutOff(page), name).toEqual([]);
        }
        await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
    });
}

test('a table that needs more room than there is scrolls in its own box', async ({ page, world }) => {
    await page.setViewportSize({ width: 830, height: 800 });
    await enter(page, world, 'root', '#/jobs');
    await expect(page.locator('main')).toContainText(world.failed);
    expect((await cutOff(page)).filter((box) => box.startsWith('the page'))).toEqual([]);
});

test('long names and many labels leave the ends of the rows in sight', async ({ page, world }) => {
    const labels = (count: number) => Array.from({ length: count }, (_, at) => `label-number:${at + 1}`);
    await page.route('**/v1/nodes?*', async (route) => {
        const response = await route.fetch();
        const { items: [node] } = await response.json();
        await route.fulfill({ json: { items: [{ ...node, labels: labels(10) }, { ...node, id: LONG, labels: labels(40) }], next_cursor: null } });
    });
    await page.route('**/v1/leases?*', async (route) => {
        const response = await route.fetch();
        const { items: [lease] } = await response.json();
        await route.fulfill({ json: { items: [{ ...lease, resource: `signer:${'x'.repeat(128)}` }], next_cursor: null } });
    });
    await page.setViewportSize({ width: 1024, height: 800 });
    await enter(page, world, 'root', '#/nodes');
    const row = page.getByRole('region', { name: 'Nodes', exact: true }).locator('tbody tr').nth(1);
    await expect(row).toContainText('label-number:5 and 35 more');
    await expect(row.getByTitle('label-number:40')).toBeVisible();
    expect((await row.boundingBox())!.height).toBeLessThan(300);
    expect(await cutOff(page)).toEqual([]);
    await visit(page, '#/cluster');
    await expect(page.getByRole('region', { name: 'Leases', exact: true }).last()).toContainText('signer:x');
    expect(await cutOff(page)).toEqual([]);
    const tenant = `${LONG}-${LONG}`;
    await page.route('**/v1/plans/*/tasks?*', async (route) => {
        const response = await route.fetch();
        const { items: [task] } = await response.json();
        await route.fulfill({ json: { items: [{ ...task, tenant, name: tenant }], next_cursor: null } });
    });
    await page.route('**/v1/sessions?*', async (route) => {
        const response = await route.fetch();
        const { items: [session] } = await response.json();
        await route.fulfill({ json: { items: [{ ...session, tenant, idle_for_ms: 86_399_000, created_at: '2026-01-01T00:00:00Z' }], next_cursor: null } });
    });
    for (const [name, address] of [['Tasks', `#/plans/${world.failedPlan}`], ['Sessions', '#/sessions']] as const) {
        await visit(page, address);
        const long = page.getByRole('region', { name, exact: true }).last().locator('tbody tr').filter({ hasText: tenant });
        await expect(long).toHaveCount(1);
        expect(await cutOff(page), address).toEqual([]);
        expect((await long.boundingBox())!.height, address).toBeLessThan(300);
    }
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('each column of the list of jobs has room for its values, or is left out', async ({ page, world }) => {
    await page.route('**/v1/jobs?*', async (route) => {
        const response = await route.fetch();
        const { items: [job] } = await response.json();
        // It took the longest that a length of time is written.
        const [created_at, finished_at] = ['2026-01-30T00:00:00Z', '2026-01-30T23:59:00Z'];
        const found = { ...job, state: 'FINISHED', outcome: 'timed_out', dead: true, pool: 'batch', tenant: 'acme', node: 'alpha-1', created_at, finished_at };
        await route.fulfill({ response, json: { items: [found], next_cursor: null } });
    });
    await enter(page, world, 'viewer', '#/jobs');
    await expect(page.locator('main tbody tr')).toHaveCount(1);
    for (const width of [1600, 1481, 1480, 1251, 1250, 1101, 1100, 1024, 1001, 1000, 830]) {
        await page.setViewportSize({ width, height: 800 });
        const tight = () => page.evaluate(() => {
            const cells = [...document.querySelectorAll<HTMLElement>('main :is(th, td)')].filter((cell) => cell.offsetWidth > 0);
            return cells.filter((cell) => cell.scrollWidth > cell.clientWidth || cell.clientWidth < 60).map((cell) => `${cell.className} ${cell.textContent}`);
        });
        expect.soft(await tight(), `at ${width} pixels`).toEqual([]);
        expect.soft(await cutOff(page), `at ${width} pixels`).toEqual([]);
    }
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the list of jobs says why a job failed', async ({ page, world }) => {
    await page.setViewportSize({ width: 1200, height: 800 });
    await enter(page, world, 'root', '#/jobs?dead=true');
    const row = page.locator('main tbody tr').filter({ hasText: world.failed });
    const error = row.locator('td.error .cut');
    await expect(error).toContainText('<b id=evil>broken</b>');
    const { error: whole } = await world.daemon.ask('GET', `/v1/jobs/${world.failed}`);
    await expect(error).toHaveAttribute('title', whole);
    const { height } = (await row.boundingBox())!;
    expect(height, 'the text is in one line').toBeLessThan(60);
});

test('the overview counts what failed, and leads to it', async ({ page, world }) => {
    await enter(page, world, 'viewer');
    const card = page.locator('.failures');
    await expect(card).toContainText('Failed, last 15 min');
    // A job of the world and a stage have failed.
    await expect(card.locator('b')).toHaveText(/^[1-9]/);
    await expect(card).toHaveClass(/bad/);
    await card.getByRole('link', { name: 'failed' }).click();
    await expect(page).toHaveURL(/#\/jobs\?outcome=failed$/);
    await expect(page.locator('main')).toContainText(world.failed);
    await visit(page, '#/');
    await card.getByRole('link', { name: 'dead jobs' }).click();
    await expect(page).toHaveURL(/#\/jobs\?dead=true$/);
});

test('the overview says how old its counts are where the daemon has not counted for long', async ({ page, world }) => {
    // Less than 15 s, also with the seconds since the answer.
    let ages = { counted_ms_ago: 5_000, finished_counted_ms_ago: 5_000, plans_counted_ms_ago: 5_000 };
    await page.route('**/v1/stats', async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), ...ages } });
    });
    await enter(page, world, 'viewer');
    const figure = (name: string) => page.locator('.figure').filter({ hasText: new RegExp(`^${name}`) });
    const plans = page.getByRole('region', { name: 'Plans and tasks' });
    await expect(page.locator('.figures')).toContainText('Running');
    await expect(page.locator('.figures')).not.toContainText('counted');
    await expect(plans).not.toContainText('counted');
    ages = { counted_ms_ago: 125_000, finished_counted_ms_ago: 245_000, plans_counted_ms_ago: 365_000 };
    for (const name of ['Oldest waiting job', 'Waiting', 'Dispatched', 'Running']) await expect(figure(name)).toContainText(/counted 2 min \d+ s ago/);
    await expect(figure('Waiting')).toContainText(/\+ \d+ delayed, counted/);
    await expect(figure('Finished')).toContainText(/counted 4 min \d+ s ago/);
    await expect(plans).toContainText(/counted 6 min \d+ s ago/);
    await expect(figure('Slots in use')).not.toContainText('counted');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the failures fit their box at every width', async ({ page, world }) => {
    await page.route('**/v1/stats', async (route) => {
        const response = await route.fetch();
        const stats = await response.json();
        await route.fulfill({ response, json: { ...stats, history: { ...stats.history, timed_out: [12_345] } } });
    });
    await enter(page, world, 'viewer');
    const box = page.locator('.failures');
    await expect(box).toContainText('12,345 timed out, dead jobs');
    for (const width of [1440, 768, 390, 360]) {
        await page.setViewportSize({ width, height: 800 });
        expect(await box.evaluate((element) => element.scrollWidth - element.clientWidth), `at ${width} pixels`).toBeLessThanOrEqual(0);
    }
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the charts have times of the day from their first sample on', async ({ page, world }) => {
    // The daemon counts once.
    const countedAt = Date.now();
    await page.route('**/v1/stats', async (route) => {
        const response = await route.fetch();
        const stats = await response.json();
        const none = { accepted: [], succeeded: [], failed: [], timed_out: [], cancelled: [] };
        await route.fulfill({ response, json: { ...stats, counted_ms_ago: Date.now() - countedAt, history: { ...stats.history, ...none } } });
    });
    await page.addInitScript(() => {
        const texts = new Set<string>();
        Object.assign(window, { texts });
        const { fillText } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
            texts.add(text);
            fillText.call(this, text, ...place);
        };
    });
    await enter(page, world, 'viewer');
    const times = () => page.evaluate(() => [...(window as unknown as { texts: Set<string> }).texts].filter((text) => /^\d\d:\d\d:\d\d$/.test(text)));
    await expect.poll(async () => (await times()).length).toBeGreaterThan(1);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the overview says so where the finished jobs are not counted yet', async ({ page, world }) => {
    await page.route('**/v1/stats', async (route) => {
        const response = await route.fetch();
        const stats = await response.json();
        const json = { ...stats, jobs: { ...stats.jobs, FINISHED: null }, finished_counted_ms_ago: null };
        await route.fulfill({ response, json });
    });
    await enter(page, world, 'viewer');
    const finished = page.locator('.figure').filter({ hasText: /^Finished/ });
    await expect(finished).toContainText('not counted yet');
    await expect(finished).toContainText('–');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the overview says how old its counts are while the daemon refuses to count', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    let isRefused = false;
    await page.route('**/v1/stats', async (route) => {
        if (isRefused) return route.fulfill({ status: 503, json: { code: 'ledger_unavailable', detail: 'it is away' } });
        const response = await route.fetch();
        const ages = { counted_ms_ago: 0, finished_counted_ms_ago: 0, plans_counted_ms_ago: 240_000 };
        await route.fulfill({ response, json: { ...(await response.json()), ...ages } });
    });
    const now = Date.now();
    await page.clock.setFixedTime(now);
    await enter(page, world, 'viewer');
    const figure = (name: string) => page.locator('.figure').filter({ hasText: new RegExp(`^${name}`) });
    await expect(figure('Running')).toBeVisible();
    await expect(page.locator('.figures')).not.toContainText('counted');
    isRefused = true;
    await expect(page.locator('main').getByRole('alert').first()).toContainText('ledger_unavailable');
    await page.clock.setFixedTime(now + 120_000);
    for (const name of ['Oldest waiting job', 'Running', 'Finished', 'Failed', 'Slots in use']) {
        await expect(figure(name)).toContainText('counted 2 min ago');
    }
    await expect(page.getByRole('region', { name: 'Plans and tasks' })).toContainText('counted 6 min ago');
    isRefused = false;
    await expect(page.locator('.figures')).not.toContainText('counted');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('each event of a plan names the task that it is about, also on a narrow screen', async ({ page, world }) => {
    await page.setViewportSize({ width: 390, height: 800 });
    await enter(page, world, 'viewer', `#/plans/${world.failedPlan}`);
    const { items } = await world.daemon.ask('GET', `/v1/plans/${world.failedPlan}/events`);
    const { reason } = items.find((event: { reason: string | null }) => event.reason !== null);
    const events = page.getByRole('region', { name: 'Events' }).last();
    await expect(events.getByRole('link', { name: 'umbrella' }).first()).toHaveAttribute('href', `#/tasks/${world.failedTask}`);
    await expect(events.getByRole('row').last()).toContainText('the plan');
    await expect(events.getByText(reason).filter({ visible: true }).first()).toBeVisible();
    await visit(page, `#/plans/${world.plan}`);
    await expect(events.getByRole('link', { name: 'globex / globex eu' }).first()).toHaveAttribute('href', `#/tasks/${world.task}`);
});

test('sessions are listed in pages, open and closed', async ({ page, world: { daemon }, world }) => {
    const open = () => daemon.ask('POST', '/v1/sessions', { tenant: 'paged' });
    const made = [];
    for (let round = 0; round < 11; round += 1) made.push(...(await Promise.all(Array.from({ length: 10 }, open))));
    const { id: closed } = await open();
    await daemon.ask('DELETE', `/v1/sessions/${closed}`);
    await enter(page, world, 'viewer', '#/sessions?state=open');
    const rows = page.locator('main tbody tr');
    await expect(rows).toHaveCount(100);
    const seen = await page.locator('main tbody').textContent();
    await page.getByRole('button', { name: 'Next page' }).click();
    await expect(page.getByRole('button', { name: 'First page' })).toBeVisible();
    await expect.poll(() => page.locator('main tbody').textContent()).not.toBe(seen);
    const all = `${seen}${await page.locator('main tbody').textContent()}`;
    for (const { id } of made) expect(all).toContain(id);
    expect(all).not.toContain(closed);
    await expect(page.locator('main h1')).toBeFocused();
    await page.goBack();
    await expect(page).toHaveURL(/#\/sessions\?state=open$/);
    await expect(rows).toHaveCount(100);
    await expect(page.getByRole('button', { name: 'First page' })).toHaveCount(0);
    await page.locator('#filter-state').selectOption('closed');
    await expect(page.locator('main tbody')).toContainText(closed);
    await page.getByRole('link', { name: closed }).click();
    await expect(page.locator('main h1')).toHaveText(closed);
});

test('the list of jobs tells delayed ones from those that wait for a node, and leads to a job by its id', async ({ page, world }) => {
    await enter(page, world, 'viewer', '#/jobs?state=CREATED');
    const row = (id: string) => page.locator('main tbody tr').filter({ hasText: id });
    await expect(row(world.delayed).locator('td.state')).toHaveText('CREATED delayed');
    await expect(row(world.waiting).locator('td.state')).toHaveText('CREATED');
    await page.getByLabel('Job id').fill(` ${world.failed} `);
    await page.keyboard.press('Enter');
    await expect(page.locator('main h1')).toHaveText(world.failed);
    await page.goBack();
    await expect(page).toHaveURL(/#\/jobs\?state=CREATED$/);
});

test('an id of which its row shows the end alone is copied as a whole', async ({ page, world }) => {
    await enter(page, world, 'viewer', '#/jobs');
    const link = page.locator('main tbody').getByRole('link', { name: world.failed });
    const tail = world.failed.slice(-12);
    const width = (await link.boundingBox())!.width;
    expect(width, 'there is room for the end alone').toBeLessThan(112);
    expect(await link.innerText()).toContain(tail);
    const copied = await link.evaluate((element) => {
        getSelection()!.selectAllChildren(element);
        return getSelection()!.toString();
    });
    expect(copied).toBe(world.failed);
    await visit(page, `#/jobs/${world.failed}`);
    await expect(page.locator('main h1')).toHaveText(world.failed);
});

test('a placement that the page of a waiting job asks about is explained above the nodes', async ({ page, world }) => {
    await enter(page, world, 'viewer', `#/jobs/${world.waiting}`);
    await page.locator('main .waits').getByRole('link', { name: 'Nodes and pools' }).click();
    const explained = page.getByText('None of the 2 nodes');
    await expect(explained).toBeInViewport();
    const { y } = (await explained.boundingBox())!;
    expect(y).toBeLessThan((await page.getByRole('region', { name: 'Nodes', exact: true }).boundingBox())!.y);
});
