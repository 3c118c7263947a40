// What changes shows by itself; lists stay where they are; and the page comes back when the daemon does.

import { serious } from './axe';
import { enter, expect, test, visit } from './world';

test('a job\u2019s page follows its events', async ({ page, world: { daemon }, world }) => {
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'] });
    await enter(page, world, 'viewer', `#/jobs/${id}`);
    await expect(page.getByText('events are streamed')).toBeVisible();
    // Polls are held back, so what shows comes by the stream.
    await page.route(`**/v1/jobs/${id}`, () => undefined);
    await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
    await expect(page.locator('main .bar .badge').first()).toHaveText('cancelled');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a job\u2019s page does not go back to what it was before an event', async ({ page, world: { daemon }, world }) => {
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'] });
    await enter(page, world, 'viewer', `#/jobs/${id}`);
    await expect(page.getByText('events are streamed')).toBeVisible();
    const polls: (string | undefined)[] = [];
    let isAsked = (): void => undefined;
    const asked = new Promise<void>((resolve) => (isAsked = resolve));
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    // The poll under way at the event answers after it, with what was before. The next one gets no answer.
    await page.route(`**/v1/jobs/${id}`, async (route) => {
        polls.push(route.request().headers()['cache-control']);
        if (polls.length > 1) return;
        const response = await route.fetch();
        isAsked();
        await released;
        await route.fulfill({ response });
    });
    await asked;
    await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
    const state = page.locator('main .bar .badge').first();
    await expect(state).toHaveText('cancelled');
    release();
    // The page asks anew once it has that answer, and accepts none that others share.
    await expect.poll(() => polls.length).toBe(2);
    expect(polls[1]).not.toBe('max-age=1');
    await expect(state).toHaveText('cancelled');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('rows do not move: new jobs wait behind a button, and rows change in their place', async ({ page, world: { daemon }, world }) => {
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'] });
    await enter(page, world, 'root', '#/jobs');
    const rows = page.locator('main tbody tr');
    await expect(rows.first()).toContainText(id);
    const shown = await rows.count();
    for (let count = 0; count < 3; count += 1) await daemon.submit({ payload: 'later', delay_ms: 3_600_000 });
    const fresh = page.getByRole('button', { name: '3 new' });
    await expect(fresh).toBeVisible();
    await expect(rows.first()).toContainText(id);
    expect(await rows.count()).toBe(shown);
    await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
    await expect(rows.first()).toContainText('cancelled');
    await fresh.click();
    await expect(rows).toHaveCount(shown + 3);
    // The button has gone, and the list is read from its beginning on.
    await expect(page.locator('main h1')).toBeFocused();
    await expect(rows.first()).not.toContainText(id);
});

test('rows of plans and of bulk operations do not move: new ones wait behind a button', async ({ page, world: { daemon }, world }) => {
    const stages = [{ name: 'only', payload: 'x', requires: ['quantum'] }];
    const plans: string[] = [];
    const plan = async () => {
        const { id } = await daemon.ask('POST', '/v1/plans', { tasks: [{ tenant: 'still', stages }], start: false });
        plans.push(id);
        return id as string;
    };
    const bulk = async () => (await daemon.ask('POST', '/v1/bulk', { action: 'cancel', filter: { tenant: 'nobody' } })).id as string;
    const rows = page.locator('main tbody tr');
    const row = (address: string) => rows.first().locator(`a[href="${address}"]`);
    await enter(page, world, 'viewer', '#/cluster');
    for (const [list, make] of [['#/plans', plan], ['#/bulk', bulk]] as const) {
        const first = row(`${list}/${await make()}`);
        await visit(page, list);
        await expect(first).toBeVisible();
        const shown = await rows.count();
        await make();
        const newest = row(`${list}/${await make()}`);
        const fresh = page.getByRole('button', { name: '2 new' });
        await expect(fresh).toBeVisible();
        await expect(first).toBeVisible();
        expect(await rows.count()).toBe(shown);
        await fresh.click();
        await expect(newest).toBeVisible();
        await expect(rows).toHaveCount(shown + 2);
    }
    // They also say what became of them.
    await visit(page, '#/plans?status=CREATED');
    await expect(row(`#/plans/${plans[2]}`)).toBeVisible();
    for (const id of plans) await daemon.ask('POST', `/v1/plans/${id}/cancel`, {});
    await expect(rows.first()).toContainText('CREATED left the list');
    await expect(row(`#/plans/${plans[2]}`)).toBeVisible();
});

test('a list shows although its answers take longer than the events between them', async ({ page, world: { daemon }, world }) => {
    await page.route('**/v1/jobs?*', async (route) => {
        const response = await route.fetch();
        await new Promise((resolve) => setTimeout(resolve, 3_000));
        await route.fulfill({ response });
    });
    await enter(page, world, 'root', '#/jobs?tenant=busy');
    const changes = setInterval(() => void daemon.submit({ payload: 'x', requires: ['quantum'], tenant: 'busy' }), 500);
    try {
        await expect(page.locator('main tbody tr').first()).toBeVisible();
    } finally {
        clearInterval(changes);
        await page.unrouteAll({ behavior: 'ignoreErrors' });
    }
    const { id } = await daemon.ask('POST', '/v1/bulk', { action: 'cancel', filter: { tenant: 'busy' } });
    await daemon.bulkEnds(id, 'DONE');
});

test('what is typed into a filter stays while the page is drawn anew', async ({ page, world }) => {
    await enter(page, world, 'root', '#/cluster');
    const owner = page.getByLabel('Owner');
    await owner.pressSequentially('test');
    await page.waitForResponse('**/v1/cluster');
    await page.waitForResponse('**/v1/cluster');
    await expect(owner).toHaveValue('test');
    await owner.press('Enter');
    await expect(page).toHaveURL(/owner=test$/);
    await visit(page, '#/cluster');
    await expect(owner).toHaveValue('');
});

test('a row whose job left the filter stays and says so, as readable as others', async ({ page, world: { daemon }, world }) => {
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'], tenant: 'leaves' });
    await enter(page, world, 'root', '#/jobs?state=CREATED&tenant=leaves');
    const row = page.locator('main tbody tr');
    await expect(row).toContainText(id);
    await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
    await expect(row).toContainText('left the list');
    for (const theme of ['light', 'dark']) {
        await page.getByRole('button', { name: theme, exact: true }).click();
        await expect(page.locator('html')).toHaveAttribute('data-theme', theme);
        expect(await serious(page, ['color-contrast']), theme).toEqual([]);
    }
});

test('a page that ends early says that the list goes on, and nothing of the rows behind its end', async ({ page, world: { daemon }, world }) => {
    for (let count = 0; count < 3; count += 1) await daemon.submit({ payload: 'x', requires: ['quantum'], tenant: 'few' });
    // So the daemon answers a token that sees few of many jobs: here the first page has none, and the next one sometimes fewer.
    let found = (items: unknown[]) => items;
    await page.route('**/v1/jobs?*', async (route) => {
        const address = new URL(route.request().url());
        if (!address.searchParams.has('cursor')) return route.fulfill({ json: { items: [], next_cursor: 'c' } });
        address.searchParams.delete('cursor');
        const { items } = await (await route.fetch({ url: address.toString() })).json();
        await route.fulfill({ json: { items: found(items), next_cursor: 'd' } });
    });
    await enter(page, world, 'root', '#/jobs?tenant=few');
    await expect(page.locator('main')).toContainText('Nothing on this page; the list goes on.');
    await expect(page.locator('main')).not.toContainText('No job matches');
    await page.getByRole('button', { name: 'Next page' }).click();
    const rows = page.locator('main tbody tr');
    await expect(rows).toHaveCount(3);
    // The last of them is over.
    const { items: [, , oldest] } = await daemon.ask('GET', '/v1/jobs?tenant=few');
    await daemon.ask('POST', `/v1/jobs/${oldest.id}/cancel`);
    await expect(rows.nth(2)).toContainText('cancelled');
    found = (items) => items.slice(0, 1);
    await expect(rows.nth(1)).toContainText('as of');
    await expect(rows.nth(2)).not.toContainText(/left the list|as of/);
    found = (items) => items.slice(1, 2);
    await expect(rows.nth(0)).toContainText('left the list');
    await expect(rows.nth(1)).not.toContainText(/left the list|as of/);
    // No cursor of this test reaches the daemon.
    await visit(page, '#/cluster');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
    const { id } = await daemon.ask('POST', '/v1/bulk', { action: 'cancel', filter: { tenant: 'few' } });
    await daemon.bulkEnds(id, 'DONE');
});

test('items that move up from the next page are not new', async ({ page, world: { daemon }, world }) => {
    const { items: [plan] } = await daemon.ask('GET', '/v1/plans');
    let found = ['p1', 'p2', 'p3'];
    await page.route('**/v1/plans?*', (route) => {
        const items = found.map((id) => ({ ...plan, id, name: id }));
        return route.fulfill({ json: { items, next_cursor: 'c' } });
    });
    await enter(page, world, 'viewer', '#/plans');
    const rows = page.locator('main tbody tr');
    await expect(rows).toHaveCount(3);
    found = ['p2', 'p3', 'p4'];
    await expect(rows.first()).toContainText('left the list');
    await expect(page.getByRole('button', { name: /new/ })).toHaveCount(0);
    found = ['p0', 'p2', 'p3'];
    await expect(page.getByRole('button', { name: '1 new' })).toBeVisible();
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a later page without items says that the list ends there, and leads to the first page', async ({ page, world }) => {
    await enter(page, world, 'viewer', '#/cluster');
    const main = page.locator('main');
    for (const [name, empty] of [['jobs', 'No job matches'], ['sessions', 'No session is kept']] as const) {
        await page.route(`**/v1/${name}?*`, (route) => route.fulfill({ json: { items: [], next_cursor: null } }));
        await visit(page, `#/${name}?cursor=c`);
        await expect(main).toContainText('Nothing on this page; the list ends here.');
        await expect(main).not.toContainText(empty);
        await page.getByRole('button', { name: 'First page' }).click();
        await expect(main).toContainText(empty);
        await expect(main).not.toContainText('the list ends here');
    }
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('an instance that is not ready says why, and nothing of when it was', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'viewer');
    const health = page.getByRole('region', { name: 'Health of this instance' });
    await expect(health).toContainText('snowflakes');
    const checks = { ledger: { status: 'down', detail: 'the ledger is full' }, bus: { status: 'ok' } };
    await page.route('**/readyz', (route) => route.fulfill({ status: 503, json: { code: 'ledger_unavailable', detail: 'the ledger is full', checks } }));
    await expect(health.getByRole('alert')).toContainText('Not ready ledger_unavailable');
    await expect(health.locator('dl')).toHaveText('ledgerdown the ledger is fullbusok ');
    await expect(health.locator('header .badge')).toHaveCount(0);
    await page.unroute('**/readyz');
    await expect(health.locator('header .badge')).toBeVisible();
    await expect(health).toContainText('snowflakes');
});

test('an answer that breaks off is no defect of the page: the daemon is away', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'viewer', '#/cluster');
    const main = page.locator('main');
    await expect(main).toContainText('this one');
    await page.evaluate(() => void (Response.prototype.text = () => Promise.reject(new TypeError('network error'))));
    await expect(main.getByRole('alert').first()).toContainText('No answer unreachable the answer broke off');
    await expect(page.getByRole('status')).toHaveText('reconnecting');
});

test('a refusal that goes on is one alert, whatever the numbers of its requests', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'viewer', '#/cluster');
    const main = page.locator('main');
    await expect(main).toContainText('this one');
    for (const request_id of ['r-first', 'r-second']) {
        const json = { code: 'ledger_unavailable', detail: 'it is away', request_id };
        await page.route('**/v1/cluster', (route) => route.fulfill({ status: 503, json }));
        await expect(main).toContainText(`request ${request_id}`);
        await expect(main.getByRole('alert')).toHaveText('Refused ledger_unavailable it is away');
    }
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the events of a large plan show page by page, and a page that fails is read again alone', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    const at = '2026-01-31T08:00:00Z';
    const events = Array.from({ length: 3_500 }, (_, seq) => ({
        seq, at, kind: 'noted', task: null, run: null, stage: null, before: null, after: null, principal: null, reason: `event number ${seq};`,
    }));
    const asked: (string | null)[] = [];
    let goOn = (): void => undefined;
    const mayGoOn = new Promise<void>((resolve) => (goOn = resolve));
    await page.route(`**/v1/plans/${world.plan}/events?*`, async (route) => {
        const cursor = new URL(route.request().url()).searchParams.get('cursor');
        asked.push(cursor);
        if (asked.length === 2) {
            await mayGoOn;
            return route.fulfill({ status: 503, json: { code: 'ledger_unavailable', detail: 'it is away' } });
        }
        const from = Number(cursor ?? 0);
        const next = from + 1_000 < events.length ? String(from + 1_000) : null;
        await route.fulfill({ json: { items: events.slice(from, from + 1_000), next_cursor: next } });
    });
    await enter(page, world, 'viewer', `#/plans/${world.plan}`);
    const card = page.getByRole('region', { name: 'Events' }).first();
    await expect(card).toContainText('event number 999;');
    await expect(card).toContainText('Reading on');
    goOn();
    await expect(card).toContainText('event number 3499;');
    await expect(card).toContainText('These are the newest 300 events');
    await expect(card).not.toContainText('event number 999;');
    await expect(card.getByRole('alert')).toHaveCount(0);
    expect(asked.slice(0, 5)).toEqual([null, '1000', '1000', '2000', '3000']);
    // From then on the last page is asked alone.
    await expect.poll(() => asked.length).toBeGreaterThan(5);
    expect(asked[5]).toBe('3000');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('ages are by the clock of the daemon, not by that of the browser', async ({ page, world: { daemon }, world }) => {
    await page.addInitScript(() => {
        const real = Date.now;
        Date.now = () => real() + 7_200_000;
    });
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'], tenant: 'of-now' });
    await enter(page, world, 'viewer', '#/jobs?tenant=of-now');
    const created = page.locator('main tbody tr').filter({ hasText: id }).locator('td.age').first();
    await expect(created).toHaveText(/^\d+ (s|min)( \d+ s)? ago$/);
    await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
});

test('the charts draw what the page has collected', async ({ page, world }) => {
    await enter(page, world, 'viewer');
    await expect(page.locator('.chart canvas')).toHaveCount(3);
    const isDrawn = () =>
        page.locator('.chart canvas').first().evaluate((canvas: HTMLCanvasElement) => {
            const { data } = canvas.getContext('2d')!.getImageData(0, 0, canvas.width, canvas.height);
            return data.some((value) => value !== 0);
        });
    await expect.poll(isDrawn).toBe(true);
});

test('a hidden tab asks nothing, and asks at once when it is seen again', async ({ page, world }) => {
    await page.clock.install();
    await enter(page, world, 'viewer');
    const hide = (hidden: boolean) =>
        page.evaluate((value) => {
            Object.defineProperty(document, 'hidden', { configurable: true, value });
            document.dispatchEvent(new Event('visibilitychange'));
        }, hidden);
    await page.waitForResponse('**/v1/stats');
    await hide(true);
    await expect(page.getByRole('status')).toHaveText('paused');
    const asked: string[] = [];
    page.on('request', (request) => asked.push(request.url()));
    // Polls would be due. What is asked last is heard last.
    await page.clock.fastForward(10_000);
    await page.evaluate(() => fetch('/readyz'));
    expect(asked.map((url) => url.replace(world.daemon.url, ''))).toEqual(['/readyz']);
    let answer = (): void => undefined;
    const answered = new Promise<void>((resolve) => (answer = resolve));
    await page.route(/\/(v1\/|readyz)/, async (route) => {
        await answered;
        await route.continue();
    });
    const stats = page.waitForRequest('**/v1/stats');
    await hide(false);
    await stats;
    // Until there is an answer, what the page shows is as old as the last one.
    await expect(page.getByRole('status')).toHaveText('connecting');
    await expect(page.getByRole('banner')).toContainText(/last answer .* ago/);
    answer();
    await expect(page.getByRole('status')).toHaveText('live');
    await expect(page.getByRole('banner')).not.toContainText('last answer');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('after a kill the page says so, keeps what it showed, and comes back by itself', async ({ page, world: { daemon }, world, watch }) => {
    await enter(page, world, 'root', '#/jobs');
    await expect(page.locator('main')).toContainText(world.failed);
    watch.allowsFailures = true;
    await daemon.kill();
    await expect(page.getByRole('status')).toHaveText('reconnecting');
    await expect(page.getByRole('banner')).toContainText(/last answer .* ago/);
    await expect(page.locator('main').getByRole('alert')).toContainText('unreachable');
    await expect(page.locator('main')).toContainText(world.failed);
    await daemon.revive();
    await expect(page.getByRole('status')).toHaveText('live');
    await expect(page.locator('main').getByRole('alert')).toHaveCount(0);
    // Streams too: a new job shows as one, sooner than a filter could.
    await daemon.submit({ payload: 'later', delay_ms: 3_600_000 });
    await expect(page.getByRole('button', { name: /new/ })).toBeVisible();
    await visit(page, '#/cluster');
    await expect(page.locator('main')).toContainText('this one');
});

test('ten thousand nodes and a thousand pools: the page draws a part of them, and leads to the rest', async ({ page, world }) => {
    const started = '2026-01-31T08:00:00Z';
    const nodes = Array.from({ length: 10_000 }, (_, at) => ({
        id: `node-${String(at).padStart(5, '0')}`, state: 'online', instance: 'a-1', capacity: 8, used: at % 9, labels: ['gpu', `rack-${at % 50}`], pools: ['p'],
        load: null, version: '1', services: [], registered_at: started, heartbeat_at: started, record_version: 1, seen_at: started,
    }));
    await page.route('**/v1/nodes?*', async (route) => {
        const params = new URL(route.request().url()).searchParams;
        const [from, limit] = [Number(params.get('cursor') ?? 0), Number(params.get('limit'))];
        const next = from + limit < nodes.length ? String(from + limit) : null;
        await route.fulfill({ json: { items: nodes.slice(from, from + limit), next_cursor: next } });
    });
    const pools = Array.from({ length: 1_000 }, (_, at) => ({ name: `pool-${at}`, routes: [], requires: [`rack-${at}`], weight: 1 }));
    await page.route('**/v1/config/pools', (route) => route.fulfill({ json: { version: 7, pools, paused: [] } }));
    await enter(page, world, 'viewer', '#/nodes');
    const [ofNodes, ofPools] = ['Nodes', 'Pools'].map((name) => page.getByRole('region', { name, exact: true }).locator('tbody tr'));
    await expect(ofNodes!.first()).toContainText('node-00000');
    expect(await ofNodes!.count()).toBe(100);
    await page.getByRole('button', { name: 'Next page' }).click();
    await expect(ofNodes!.first()).toContainText('node-00100');
    // The last row is of the jobs that name no pool.
    await expect(ofPools!).toHaveCount(200);
    await page.getByRole('button', { name: 'Show 200 more of 801' }).click();
    await expect(ofPools!).toHaveCount(400);
    await page.getByLabel('Node id').fill('alpha-1');
    await page.getByRole('button', { name: 'Show', exact: true }).click();
    await expect(page.locator('main h1')).toHaveText('alpha-1');
});

test('the list of a session\u2019s jobs has further pages', async ({ page, world: { daemon }, world }) => {
    const { id: session } = await daemon.ask('POST', '/v1/sessions', { requires: ['quantum'] });
    const jobs = Array.from({ length: 101 }, (_, at) => ({ payload: at, session }));
    await daemon.ask('POST', '/v1/jobs/batch', { jobs });
    await enter(page, world, 'viewer', `#/sessions/${session}`);
    const rows = page.getByRole('region', { name: 'Jobs', exact: true }).locator('tbody tr');
    const heights = () => rows.evaluateAll((all) => all.map((row) => row.getBoundingClientRect().height));
    await expect(rows).toHaveCount(100);
    await page.getByRole('button', { name: 'Next page' }).click();
    await expect(rows).toHaveCount(1);
    await page.getByRole('button', { name: 'First page' }).click();
    await expect(rows).toHaveCount(100);
    const before = await heights();
    // The rows stay, so the next page goes on after them, and those that the first 100 have no more say how old they are.
    for (let count = 0; count < 3; count += 1) await daemon.submit({ payload: 'later', session });
    await expect(page.getByRole('button', { name: '3 new' })).toBeVisible();
    await expect(rows.filter({ hasText: /as of .*\d\d:\d\d:\d\d/ })).toHaveCount(3);
    await expect(rows.last()).toContainText('as of');
    expect(await heights()).toEqual(before);
    const seen = await rows.allTextContents();
    await page.getByRole('button', { name: 'Next page' }).click();
    await expect(rows).toHaveCount(1);
    expect(seen).not.toContain((await rows.allTextContents())[0]);
    await expect(rows).not.toContainText('as of');
    await page.getByRole('button', { name: 'First page' }).click();
    await expect(rows).toHaveCount(100);
    await expect(rows.first()).not.toContainText('as of');
    // Other tests look for their jobs on the first page of all jobs.
    for (const action of ['cancel', 'delete']) {
        const bulk = await daemon.ask('POST', '/v1/bulk', { action, filter: { session }, rate: 10_000 });
        await daemon.bulkEnds(bulk.id, 'DONE');
    }
    expect((await daemon.ask('GET', `/v1/jobs?session=${session}`)).items).toEqual([]);
});
