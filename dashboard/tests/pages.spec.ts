// Every page with data in it: what it shows, whether everybody can use it, and that nothing of the data is more than text.

import { serious } from './axe';
import { pages } from './pages';
import { enter, expect, test, visit } from './world';

test('every page shows its data as text, in both themes, and axe finds nothing serious', async ({ page, world }) => {
    test.setTimeout(900_000);
    await enter(page, world, 'root');
    for (const [name, address, texts] of pages(world)) {
        await visit(page, address);
        for (const text of texts) {
            await expect(page.locator('main'), `${name} shows ${text}`).toContainText(text);
        }
        for (const theme of ['light', 'dark']) {
            await page.getByRole('button', { name: theme, exact: true }).click();
            await expect(page.locator('html')).toHaveAttribute('data-theme', theme);
            // A theme changes colours only.
            const rules = theme === 'light' ? undefined : ['color-contrast', 'link-in-text-block'];
            expect(await serious(page, rules), `${name}, ${theme}`).toEqual([]);
        }
        await expect(page.locator('main').getByRole('alert'), name).toHaveCount(0);
    }
});

test('no page is wider than a narrow screen, and the menu leads to every page', async ({ page, world }) => {
    await page.setViewportSize({ width: 390, height: 800 });
    await enter(page, world, 'root');
    for (const [name, address, [text]] of pages(world)) {
        await visit(page, address);
        await expect(page.locator('main'), name).toContainText(text!);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
        expect(overflow, `${name} is too wide`).toBeLessThanOrEqual(0);
    }
    await page.locator('button.menu').click();
    await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Signers' }).click();
    await expect(page.locator('main h1')).toHaveText('Signers');
    const menu = page.getByRole('navigation', { name: 'Pages' });
    await expect(menu).toBeHidden();
    // It closes also where one stays.
    await page.locator('button.menu').click();
    await menu.getByRole('link', { name: 'Signers' }).click();
    await expect(menu).toBeHidden();
    await page.locator('button.menu').click();
    await expect(menu).toBeVisible();
    await page.keyboard.press('Escape');
    await expect(menu).toBeHidden();
    await expect(page.locator('button.menu')).toBeFocused();
});

test('the keyboard alone leads through the pages', async ({ page, world }) => {
    // Again where the second key came too late after the first one.
    const press = (key: string, title: string) => expect(async () => {
        await page.keyboard.press('g');
        await page.keyboard.press(key);
        await expect(page.locator('main h1')).toHaveText(title, { timeout: 2_000 });
    }).toPass();
    await enter(page, world, 'root');
    await press('j', 'Jobs');
    await page.keyboard.press('/');
    await expect(page.locator('#filter-state')).toBeFocused();
    await page.locator('main').focus();
    await press('a', 'Audit');
    await page.reload();
    await expect(page.locator('main h1')).toHaveText('Audit');
    await page.keyboard.press('Tab');
    await expect(page.getByRole('link', { name: 'Skip to the content' })).toBeFocused();
    await page.keyboard.press('Enter');
    await expect(page.locator('main')).toBeFocused();
});

test('a letter without g before it leads nowhere, also in the first second of a page', async ({ page, world }) => {
    await enter(page, world, 'root');
    const address = await page.evaluate(() => {
        const pressed = new KeyboardEvent('keydown', { key: 'a', bubbles: true });
        Object.defineProperty(pressed, 'timeStamp', { value: 1_000 });
        document.body.dispatchEvent(pressed);
        return location.hash;
    });
    expect(address).toBe('#/');
    await expect(page.locator('main h1')).toHaveText('Overview');
});

test('filters are in the address and come back with it', async ({ page, world }) => {
    await enter(page, world, 'root', '#/jobs');
    await page.locator('#filter-state').selectOption('FINISHED');
    await page.locator('#filter-pool').fill('batch');
    await page.locator('#filter-pool').press('Enter');
    await expect(page).toHaveURL(/#\/jobs\?state=FINISHED&pool=batch$/);
    await expect(page.locator('main tbody tr')).toHaveCount(1);
    await page.reload();
    await expect(page.locator('#filter-pool')).toHaveValue('batch');
    await expect(page.locator('main tbody tr')).toHaveCount(1);
    await expect(page.locator('main')).toContainText(world.failed);
});

test('the theme follows the system until somebody chooses', async ({ page, world }) => {
    await page.addInitScript(() => {
        const { matchMedia } = window;
        const lists: MediaQueryList[] = [];
        window.matchMedia = (query) => {
            const list = matchMedia.call(window, query);
            lists.push(list);
            return list;
        };
        Object.assign(window, { prefers: () => lists.forEach((list) => list.dispatchEvent(new Event('change'))) });
    });
    // A browser tells a page of another preference when it paints, which a busy one puts off: here the test tells it.
    const prefers = async (colorScheme: 'light' | 'dark') => {
        await page.emulateMedia({ colorScheme });
        await page.evaluate(() => (window as unknown as { prefers: () => void }).prefers());
    };
    await page.emulateMedia({ colorScheme: 'dark' });
    await enter(page, world, 'root', '#/cluster');
    await expect(page.locator('html')).toHaveAttribute('data-theme', 'dark');
    await prefers('light');
    await expect(page.locator('html')).toHaveAttribute('data-theme', 'light');
    await page.getByRole('button', { name: 'dark', exact: true }).click();
    await expect(page.locator('html')).toHaveAttribute('data-theme', 'dark');
    await prefers('light');
    await expect(page.locator('html')).toHaveAttribute('data-theme', 'dark');
    await page.reload();
    await expect(page.locator('html')).toHaveAttribute('data-theme', 'dark');
});

test('a refusal is shown with its code and what it says', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'root', '#/jobs/00000000-0000-7000-8000-000000000000');
    await expect(page.locator('main').getByRole('alert').first()).toContainText('not_found');
    await visit(page, '#/audit?since=yesterday');
    await expect(page.locator('main').getByRole('alert').first()).toContainText('invalid');
});

test('the page of a tenant of jobs alone says that it has no task, and leads to its jobs', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'viewer', `#/jobs/${world.succeeded}`);
    await page.getByRole('link', { name: 'acme' }).click();
    await expect(page.locator('main h1')).toHaveText('Tenant acme');
    await expect(page.locator('main')).toContainText('No task of this tenant.');
    await expect(page.locator('main').getByRole('alert')).toHaveCount(0);
    await page.getByRole('link', { name: 'the tenant\u2019s jobs' }).click();
    await expect(page).toHaveURL(/#\/jobs\?tenant=acme$/);
});

test('a load that is next to nothing is shown', async ({ page, world }) => {
    await page.route('**/v1/nodes/alpha-1', async (route) => {
        const node = await (await route.fetch()).json();
        const body = JSON.stringify({ ...node, load: { cpu: 'tiny' } }).replace('"tiny"', '5e-6');
        await route.fulfill({ contentType: 'application/json', body });
    });
    await enter(page, world, 'viewer', '#/nodes/alpha-1');
    await expect(page.locator('main')).toContainText('cpu 0');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a node that its instance alone knows has no version', async ({ page, world }) => {
    await page.route('**/v1/nodes/alpha-1', async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), record_version: 0, registered_at: null } });
    });
    await enter(page, world, 'viewer', '#/nodes/alpha-1');
    const card = page.getByRole('region', { name: 'Node', exact: true });
    await expect(card).toContainText('the bus does not know of this connection yet');
    await expect(card).not.toContainText('version 0');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a released lease is called so on its page, as in the list', async ({ page, world }) => {
    const at = '2026-01-31T08:00:00Z';
    const lease = { resource: 'signer:x', owner: null, fencing_token: 7, acquired_at: at, renewed_at: at, expires_in_ms: -1, live: false };
    await page.route('**/v1/leases/*', (route) => route.fulfill({ json: lease }));
    await enter(page, world, 'viewer', '#/leases/signer:x');
    await expect(page.getByRole('region', { name: 'Lease', exact: true }).locator('.badge')).toHaveText('released');
});

test('a mode of signers of which the token sees none is not shown as that of all', async ({ page, world }) => {
    let only: string[] | undefined = [];
    await page.route('**/v1/cluster', async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), only } });
    });
    const card = page.getByRole('region', { name: 'Mode', exact: true });
    await enter(page, world, 'viewer', '#/cluster');
    await expect(card).toContainText('none that this token sees');
    only = undefined;
    await expect(card).not.toContainText('none that this token sees');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the audit says on a narrow screen too what changed, and why', async ({ page, world }) => {
    await page.setViewportSize({ width: 390, height: 800 });
    await enter(page, world, 'root', '#/audit?subject=pool:spare');
    await expect(page.locator('main').getByText('reason: repair').first()).toBeVisible();
});

test('the audit shows what differs between before and after, and leads to what was changed', async ({ page, world }) => {
    const policy = (keys: boolean) => `first_nonce=0 hold_ms=none on_expiry=release max_in_flight=none shared_keys=${keys}`;
    await page.route('**/v1/audit?*', async (route) => {
        const response = await route.fetch();
        const { items: [entry] } = await response.json();
        const found = [
            { ...entry, id: 2, action: 'set_policy', subject: `signer:${world.signer}`, before: policy(false), after: policy(true) },
            { ...entry, id: 1, action: 'resolve_stage', subject: `task:${world.task} stage 2` },
        ];
        await route.fulfill({ response, json: { items: found, next_cursor: null } });
    });
    await page.setViewportSize({ width: 1440, height: 900 });
    await enter(page, world, 'root', '#/audit');
    for (const [text, to] of [[`signer:${world.signer}`, `#/signers/${encodeURIComponent(world.signer)}`], [`task:${world.task} stage 2`, `#/tasks/${world.task}`]] as const) {
        await expect(page.getByRole('link', { name: text })).toHaveAttribute('href', to);
    }
    for (const keys of [false, true]) {
        const shown = page.getByTitle(policy(keys)).filter({ visible: true });
        const isCut = await shown.evaluate((box) => box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight);
        expect(isCut, await shown.innerText()).toBe(false);
    }
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the list of nonces has one status or all of them', async ({ page, world }) => {
    await enter(page, world, 'viewer', `#/signers/${world.signer}`);
    await expect(page.locator('#filter-status')).toHaveValue('QUARANTINED');
    await expect(page.locator('#filter-status option')).toHaveText(['QUARANTINED', 'RELEASED', 'HELD', 'CONSUMED', 'all']);
});

test('a number in the context of a checkpoint is a number, also one that JavaScript cannot hold', async ({ page, world }) => {
    await page.route(`**/v1/tasks/${world.task}/checkpoints?*`, async (route) => {
        const { items, next_cursor } = await (await route.fetch()).json();
        const json = JSON.stringify({ items: items.map((item: object) => ({ ...item, context: 'large' })), next_cursor });
        await route.fulfill({ contentType: 'application/json', body: json.replaceAll('"large"', '{"wei":123456789012345678901234567890}') });
    });
    await enter(page, world, 'viewer', `#/tasks/${world.task}`);
    await expect(page.getByRole('region', { name: 'Checkpoints' }).last()).toContainText('"wei": 123456789012345678901234567890');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a number that JavaScript cannot hold keeps its digits', async ({ page, world }) => {
    const response = await fetch(`${world.daemon.url}/v1/jobs`, {
        method: 'POST',
        headers: { authorization: 'Bearer root', 'content-type': 'application/json' },
        body: '{"payload":{"wei":123456789012345678901234567890,"small":1.50},"requires":["quantum"]}',
    });
    const { id } = (await response.json()) as { id: string };
    await enter(page, world, 'root', `#/jobs/${id}`);
    await expect(page.getByRole('region', { name: 'Payload' }).last()).toContainText('"wei": 123456789012345678901234567890');
});

test('a job that runs says for how long, how far it is, and that its error is of an earlier attempt', async ({ page, world }) => {
    const { running: id } = world;
    await page.route(`**/v1/jobs/${id}/events`, (route) => route.fulfill({ status: 204 }));
    await page.route(`**/v1/jobs/${id}`, async (route) => {
        const response = await route.fetch();
        const job = await response.json();
        const ago = (seconds: number) => new Date(Date.now() - seconds * 1_000).toISOString();
        const times = { created_at: ago(600), dispatched_at: ago(150), running_at: ago(148) };
        await route.fulfill({ response, json: { ...job, ...times, attempt: 2, error: 'out of memory', progress: { percent: 42.25 } } });
    });
    await enter(page, world, 'viewer', `#/jobs/${id}`);
    await expect(page.locator('main .bar')).toContainText('42.3 %');
    await expect(page.locator('main .trouble')).toHaveText('Error of an earlier attempt out of memory');
    await expect(page.locator('main .timeline li').filter({ hasText: 'running' })).toContainText(/after 2\.0 s, 2 min ago/);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a job that failed is said to have no result, and one that succeeded with null has that', async ({ page, world }) => {
    const result = page.getByRole('region', { name: 'Result', exact: true }).first();
    await enter(page, world, 'viewer', `#/jobs/${world.failed}`);
    await expect(result).toContainText('The job ended without a result.');
    await expect(page.locator('main .trouble')).toContainText(/^Error exit/);
    await page.route(`**/v1/jobs/${world.succeeded}`, async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), result: null } });
    });
    await visit(page, `#/jobs/${world.succeeded}`);
    await expect(result.locator('pre')).toHaveText('null');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a plan says of what its numbers are, a segment groups its digits, and a node leads to the jobs that run', async ({ page, world }) => {
    await enter(page, world, 'root', `#/plans/${world.failedPlan}`);
    await expect(page.locator('main .bar')).toContainText('0 of 1 tasks succeeded');
    await visit(page, '#/nodes/alpha-1');
    await expect(page.getByRole('link', { name: 'running jobs' })).toHaveAttribute('href', '#/jobs?state=RUNNING');
    await page.route('**/v1/ids/segments?*', async (route) => {
        const response = await route.fetch();
        const { items: [segment] } = await response.json();
        await route.fulfill({ response, json: { items: [{ ...segment, max: '9223372036854775807' }], next_cursor: null } });
    });
    await visit(page, '#/ids');
    await expect(page.locator('main')).toContainText('9,223,372,036,854,775,807');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a printed page has all of a payload, and neither the menu nor buttons', async ({ page, world }) => {
    await page.route(`**/v1/jobs/${world.failed}`, async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), payload: Array.from({ length: 200 }, (_, at) => ({ at, text: 'x'.repeat(60) })) } });
    });
    await enter(page, world, 'root', `#/jobs/${world.failed}`);
    const payload = page.locator('pre.json').first();
    const isWhole = () => payload.evaluate((box) => box.scrollHeight <= box.clientHeight);
    await expect(payload).toContainText('"at": 199');
    expect(await isWhole()).toBe(false);
    await page.emulateMedia({ media: 'print' });
    expect(await isWhole()).toBe(true);
    await expect(page.getByRole('button')).toHaveCount(0);
    await expect(page.getByRole('navigation')).toHaveCount(0);
    expect((await payload.boundingBox())!.width, 'the page has the width of the menu, too').toBeGreaterThan(500);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test.describe('in another time zone', () => {
    test.use({ timezoneId: 'America/New_York' });

    test('the page says in which zone its times are', async ({ page, world }) => {
        const { created_at } = await world.daemon.ask('GET', `/v1/jobs/${world.failed}`);
        await enter(page, world, 'viewer', `#/jobs/${world.failed}`);
        await expect(page.locator('.foot')).toContainText('times in America/New_York');
        const there = new Date(created_at).toLocaleTimeString('en-GB', { timeZone: 'America/New_York' });
        await expect(page.getByTitle(created_at).first()).toContainText(there);
    });
});
