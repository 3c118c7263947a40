// Tokens: how one is entered and kept, and what each may see and press.

import { Daemon } from './daemon';
import { enter, expect, test, visit } from './world';
import { pages } from './pages';

test('the page asks for a token, says when it is wrong, and keeps it out of the address', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await page.goto(`${world.daemon.url}/`);
    await page.getByLabel('Token').fill('nobody');
    await page.getByRole('button', { name: 'Enter' }).click();
    await expect(page.getByRole('alert')).toContainText('unauthorized');
    await page.getByLabel('Token').fill('root');
    await page.getByRole('button', { name: 'Enter' }).click();
    await expect(page.locator('main h1')).toHaveText('Overview');
    await expect(page).toHaveURL(/^[^?]*$/);
    const kept = await page.evaluate(() => ({ session: sessionStorage.getItem('fencepost.token'), local: JSON.stringify(localStorage), cookie: document.cookie }));
    expect(kept).toEqual({ session: 'root', local: '{}', cookie: '' });
    await page.reload();
    await expect(page.locator('main h1')).toHaveText('Overview');
    await page.getByRole('button', { name: 'Leave' }).click();
    await expect(page.getByLabel('Token')).toBeVisible();
    expect(await page.evaluate(() => sessionStorage.getItem('fencepost.token'))).toBeNull();
});

test('a browser that keeps nothing shows the page as well, and asks for the token each time', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await page.addInitScript(() => {
        const refuse = (): never => {
            throw new DOMException('nothing is kept', 'SecurityError');
        };
        for (const area of ['sessionStorage', 'localStorage']) Object.defineProperty(window, area, { get: refuse });
    });
    for (let time = 0; time < 2; time += 1) {
        await page.goto(`${world.daemon.url}/`);
        await page.getByLabel('Token').fill('root');
        await page.getByRole('button', { name: 'Enter' }).click();
        await expect(page.locator('main h1')).toHaveText('Overview');
        await page.getByRole('button', { name: 'dark', exact: true }).click();
        await expect(page.locator('html')).toHaveAttribute('data-theme', 'dark');
    }
    await page.getByRole('button', { name: 'Leave' }).click();
    await expect(page.getByLabel('Token')).toBeVisible();
});

test('a token with a character that no token has is told apart from a daemon that does not answer', async ({ page, world, watch }) => {
    // Without a token the page asks once, and is refused.
    watch.allowsFailures = true;
    await page.goto(`${world.daemon.url}/`);
    for (const wrong of ['root\u200b', '\u201croot\u201d', 'ro ot', 'r\u00f6\u00f6t']) {
        await page.getByLabel('Token').fill(wrong);
        await page.getByRole('button', { name: 'Enter' }).click();
        await expect(page.getByRole('alert')).toContainText('This is no token invalid it has a character that no token has');
        expect(await page.evaluate(() => sessionStorage.getItem('fencepost.token'))).toBeNull();
        await page.reload();
    }
    await page.getByLabel('Token').fill('root');
    await page.getByRole('button', { name: 'Enter' }).click();
    await expect(page.locator('main h1')).toHaveText('Overview');
});

const ACTS = /Cancel|Retry|Dismiss|Delete|Drain|Undrain|Resolve|Change|Pause|Resume|Start|Close|Break|Confirm|Try without/;

test('a token of the scope read sees every page it may, and no button that changes anything', async ({ page, world }) => {
    await enter(page, world, 'viewer');
    for (const [name, address, texts] of pages(world)) {
        await visit(page, address);
        if (name === 'ids' || name.startsWith('audit')) {
            await expect(page.locator('main'), name).toContainText('need');
        } else {
            const shown = texts.filter((text) => !ACTS.test(text));
            for (const text of shown) await expect(page.locator('main'), `${name} shows ${text}`).toContainText(text);
        }
        await expect(page.locator('main').getByRole('button', { name: ACTS }), name).toHaveCount(0);
    }
});

test('a token of the scope submit changes jobs and plans, and nothing that is the operators\u2019', async ({ page, world }) => {
    await enter(page, world, 'maker', `#/jobs/${world.failed}`);
    for (const name of ['Retry job', 'Dismiss job', 'Delete job']) await expect(page.getByRole('button', { name })).toBeVisible();
    await visit(page, '#/jobs?pool=batch');
    await expect(page.getByRole('button', { name: 'Cancel all' })).toBeVisible();
    await visit(page, '#/nodes');
    await expect(page.locator('main')).toContainText('alpha-1');
    await expect(page.locator('main')).toContainText('spare is paused');
    await expect(page.getByRole('button', { name: /Drain|Pause|pause|Resume/ })).toHaveCount(0);
    await visit(page, `#/signers/${world.signer}`);
    await expect(page.locator('main')).toContainText('QUARANTINED');
    await expect(page.getByRole('button', { name: /Resolve|Change/ })).toHaveCount(0);
    await visit(page, '#/tenants/globex');
    await expect(page.locator('main')).toContainText('token');
    await expect(page.getByRole('button', { name: 'Break lock' })).toHaveCount(0);
    await visit(page, '#/ids');
    await expect(page.locator('main')).toContainText('order');
});

test('a token that may see nothing is told so', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await page.goto(`${world.daemon.url}/`);
    await page.getByLabel('Token').fill('worker');
    await page.getByRole('button', { name: 'Enter' }).click();
    await expect(page.locator('main')).toContainText('The dashboard needs read');
});

test('where a token with patterns sees nothing the page says that it sees some names only, and offers nothing that needs all', async ({ page, world }) => {
    await page.route('**/v1/whoami', async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), sees_everything: false } });
    });
    await page.route(/\/v1\/(nodes|signers|sessions|jobs|plans|bulk|leases)\?/, (route) => route.fulfill({ json: { items: [], next_cursor: null } }));
    await page.route('**/v1/config/pools', (route) => route.fulfill({ json: { version: 7, pools: [], paused: [] } }));
    await enter(page, world, 'root', '#/nodes');
    const main = page.locator('main');
    await expect(main).toContainText('No pool is configured that this token sees.');
    await expect(page.getByRole('region', { name: 'Pools', exact: true }).getByRole('table')).toHaveCount(0);
    await expect(main).not.toContainText('Which node would a job get?');
    const lists = [
        ['nodes', 'No node is connected.'], ['signers', 'No signer yet.'], ['sessions', 'No session is kept.'], ['sessions?state=open', 'No session is open.'],
        ['jobs', 'No job matches.'], ['plans', 'No plan matches.'], ['bulk', 'No operation in the last 30 days.'], ['cluster', 'No lease matches.'],
    ];
    for (const [address, empty] of lists) {
        await visit(page, `#/${address}`);
        await expect(main.locator('.empty').filter({ hasText: empty }), address).toContainText('This token sees some names only.');
    }
    await visit(page, '#/audit');
    await expect(main).toContainText('and without patterns');
    await visit(page, `#/jobs/${world.waiting}`);
    await expect(main).toContainText('Nodes and pools shows the nodes that this token sees.');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('without tokens nobody is asked for one', async ({ page, world, watch }) => {
    const daemon = await Daemon.start(false);
    try {
        watch.origin = daemon.url;
        await page.goto(`${daemon.url}/`);
        await expect(page.locator('main h1')).toHaveText('Overview');
        await expect(page.locator('main')).toContainText('No jobs yet');
        await expect(page.getByText('no tokens are configured')).toBeVisible();
        await visit(page, '#/sessions');
        await expect(page.locator('main')).toContainText('No session is kept.');
        // While no pool is configured, all jobs are those of the pool of all nodes, also those that name none.
        for (const job of [{}, {}, { pool: 'default' }, { delay_ms: 3_600_000 }]) await daemon.submit({ payload: 'x', ...job });
        await visit(page, '#/nodes');
        await expect(page.locator('main')).toContainText('fencepost pool set');
        await expect(page.getByRole('row').filter({ has: page.getByRole('link', { name: 'default', exact: true }) })).toContainText(/default\s*[\d.]+ (ms|s|min)( \d+ s)?\s*3/);
    } finally {
        watch.origin = world.daemon.url;
        watch.allowsFailures = true;
        await page.goto(world.daemon.url);

        await daemon.stop();
    }
});

test('when the token is taken away, the page forgets it and asks anew', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'viewer', '#/cluster');
    await expect(page.locator('main')).toContainText('this one');
    const body = JSON.stringify({ code: 'unauthorized', detail: 'no such token is configured', status: 401 });
    await page.route('**/v1/cluster', (route) => route.fulfill({ status: 401, contentType: 'application/problem+json', body }));
    await expect(page.getByLabel('Token')).toBeVisible();
    await expect(page.getByRole('alert')).toContainText('not known any more');
    expect(await page.evaluate(() => sessionStorage.getItem('fencepost.token'))).toBeNull();
});

test('a late refusal of an earlier token does not end the view of the next one', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    let answer = (): void => undefined;
    const answered = new Promise<void>((resolve) => (answer = resolve));
    await page.route('**/v1/nodes/select', async (route) => {
        await answered;
        await route.fulfill({ status: 401, json: { code: 'unauthorized', detail: 'no such token is configured' } });
    });
    await enter(page, world, 'viewer', '#/nodes');
    const asked = page.waitForRequest('**/v1/nodes/select');
    await page.getByRole('button', { name: 'Explain' }).click();
    await asked;
    await page.getByRole('button', { name: 'Leave' }).click();
    await page.getByLabel('Token').fill('root');
    await page.getByRole('button', { name: 'Enter' }).click();
    const title = page.locator('main h1');
    await expect(title).toHaveText('Nodes and pools');
    const refused = page.waitForResponse('**/v1/nodes/select');
    answer();
    await refused;
    // What is asked last is heard last.
    await page.evaluate(() => fetch('/readyz'));
    await expect(title).toHaveText('Nodes and pools');
    expect(await page.evaluate(() => sessionStorage.getItem('fencepost.token'))).toBe('root');
});

test('the page takes the new scopes of its token within a minute, and offers a reload when the daemon has another version', async ({ page, world }) => {
    let changes = {};
    await page.route('**/v1/whoami', async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), ...changes } });
    });
    await page.clock.install();
    await enter(page, world, 'viewer', `#/jobs/${world.failed}`);
    await expect(page.locator('main')).toContainText(world.failed);
    await expect(page.locator('main .bar')).toContainText('failed');
    const retry = page.getByRole('button', { name: 'Retry job' });
    const reload = page.getByRole('button', { name: 'Reload' });
    await expect(retry).toHaveCount(0);
    await expect(reload).toHaveCount(0);
    changes = { scopes: ['read', 'submit'], version: '99.0.0' };
    await page.clock.fastForward(60_000);
    await expect(retry).toBeVisible();
    await expect(page.locator('.notice')).toContainText('The daemon has the version 99.0.0 now');
    const loaded = page.waitForEvent('load');
    await reload.click();
    await loaded;
    await expect(retry).toBeVisible();
    // The script is that of this daemon.
    await expect(reload).toBeVisible();
    // Scopes may also be taken away.
    changes = { scopes: ['read'], version: '99.0.0' };
    await page.clock.fastForward(60_000);
    await expect(retry).toHaveCount(0);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a page that is older than the daemon when it is opened offers a reload', async ({ page, world }) => {
    await page.route('**/v1/whoami', async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), version: '99.0.0' } });
    });
    await enter(page, world, 'viewer', '#/cluster');
    await expect(page.locator('.notice')).toContainText('The daemon has the version 99.0.0 now');
    await expect(page.getByRole('button', { name: 'Reload' })).toBeVisible();
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a page that asks for little does not wait before its answer is due', async ({ page, world }) => {
    await page.clock.install();
    // Without the scope `submit` this page asks who the caller is, once a minute, and nothing else.
    await enter(page, world, 'viewer', '#/ids');
    const sign = page.getByRole('status');
    await expect(sign).toHaveText('live');
    await page.clock.fastForward(40_000);
    await expect(sign).toHaveText('live');
    await expect(page.getByRole('banner')).not.toContainText('last answer');
    await page.route('**/v1/whoami', () => undefined);
    await page.clock.fastForward(40_000);
    await expect(sign).toHaveText('waiting');
    await expect(page.getByRole('banner')).toContainText(/last answer 1 min \d+ s ago/);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the link is late although one goes from page to page before an answer is', async ({ page, world }) => {
    // The time moves when the test says so.
    let now = Date.now();
    await page.clock.setFixedTime(now);
    await enter(page, world, 'viewer', '#/cluster');
    const sign = page.getByRole('status');
    await expect(sign).toHaveText('live');
    await page.route('**/v1/**', () => undefined);
    for (const [address, title] of [['#/jobs', 'Jobs'], ['#/plans', 'Plans and tenants'], ['#/signers', 'Signers']] as const) {
        const asked = page.waitForRequest(`**/v1/${address.slice(2)}?*`);
        await visit(page, address);
        await expect(page.locator('main h1')).toHaveText(title);
        await asked;
        now += 8_000;
        await page.clock.setFixedTime(now);
    }
    await visit(page, '#/cluster');
    await expect(page.locator('main h1')).toHaveText('Cluster');
    // This page's own answer is not late yet.
    await expect(sign).toHaveText('waiting');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a redirect to another instance is not followed', async ({ page, world }) => {
    await enter(page, world, 'viewer', '#/cluster');
    await page.route('**/v1/cluster', (route) => route.fulfill({ status: 307, headers: { location: 'http://127.0.0.1:1/v1/cluster' } }));
    await expect(page.locator('main').getByRole('alert')).toContainText('redirected');
});
