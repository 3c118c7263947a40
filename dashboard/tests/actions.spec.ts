// Every action: what the dialog asks, what the daemon did, and the entry in the audit where there is one.

import { until } from './daemon';
import { enter, expect, test, visit } from './world';
import type { Locator, Page } from '@playwright/test';

/** Presses a button that opens a dialog, fills it in, and confirms. */
async function act(page: Page, button: string, values: Record<string, string> = {}, confirm = button): Promise<void> {
    await page.locator('main').getByRole('button', { name: button, exact: true }).first().click();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toBeVisible();
    for (const [label, value] of Object.entries(values)) {
        const field = dialog.getByLabel(label);
        if ((await field.evaluate((element) => element.tagName)) === 'SELECT') await field.selectOption(value);
        else await field.fill(value);
    }
    await dialog.getByRole('button', { name: confirm, exact: true }).click();
    await expect(dialog).toBeHidden();
}

test('a job is cancelled and retried', async ({ page, world: { daemon }, world }) => {
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'] });
    await enter(page, world, 'root', `#/jobs/${id}`);
    await act(page, 'Cancel job');
    await expect(page.locator('main .bar .badge').first()).toHaveText('cancelled');
    // The button has gone, and the focus is where the page is read on.
    await expect(page.locator('main')).toBeFocused();
    expect((await daemon.ask('GET', `/v1/jobs/${id}`)).outcome).toBe('cancelled');
    expect(await daemon.audited('cancel_job', `job:${id}`)).toBe(1);
    await act(page, 'Retry job');
    await expect(page.locator('main h1')).not.toHaveText(id);
    const { retried_as: retry } = await daemon.ask('GET', `/v1/jobs/${id}`);
    await expect(page.locator('main h1')).toHaveText(retry);
    await expect(page.locator('main')).toContainText(id);
    expect(await daemon.audited('retry_job', `job:${id}`)).toBe(1);
    await visit(page, `#/jobs/${id}`);
    await page.getByRole('button', { name: 'Retry job' }).click();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toContainText('retried already');
    await expect(dialog.getByRole('link')).toHaveAttribute('href', `#/jobs/${retry}`);
    await page.keyboard.press('Escape');
    await daemon.ask('POST', `/v1/jobs/${retry}/cancel`);
});

test('the job of a stage leads to its plan and its task, and its dialogs say what becomes of them', async ({ page, world: { daemon }, world, watch }) => {
    const stages = [{ name: 'migrate', payload: 'x', requires: ['quantum'] }];
    const { id: plan } = await daemon.ask('POST', '/v1/plans', { tasks: [{ tenant: 'oscorp', stages }], start: true });
    const task = async () => (await daemon.ask('GET', `/v1/plans/${plan}/tasks`)).items[0];
    await until('the stage has a job', async () => (await task()).stages[0].job !== null);
    const { id, stages: [{ job }] } = await task();
    await enter(page, world, 'root', `#/jobs/${job}`);
    const bar = page.locator('main .bar');
    await expect(bar).toContainText('stage migrate of a plan, task oscorp');
    await expect(bar.getByRole('link', { name: 'a plan' })).toHaveAttribute('href', `#/plans/${plan}`);
    await expect(bar.getByRole('link', { name: 'oscorp' })).toHaveAttribute('href', `#/tasks/${id}`);
    await page.getByRole('button', { name: 'Cancel job' }).click();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toContainText('Its task becomes FAILED');
    await expect(dialog.getByRole('link', { name: 'cancel the task' })).toHaveAttribute('href', `#/tasks/${id}`);
    await dialog.getByRole('button', { name: 'Cancel job' }).click();
    await until('the task fails', async () => (await task()).status === 'FAILED');
    await expect(bar.getByRole('link', { name: 'Retry its task' })).toHaveAttribute('href', `#/tasks/${id}`);
    await expect(page.getByRole('button', { name: 'Retry job' })).toHaveCount(0);
    await page.getByRole('button', { name: 'Delete job' }).click();
    await expect(dialog).toContainText('its task stays as it is, and goes on naming this job');
    await page.keyboard.press('Escape');
    await until('the plan waits for it no more', async () => (await daemon.status('DELETE', `/v1/jobs/${job}`)) !== 409);
    watch.allowsFailures = true;
    await visit(page, `#/tasks/${id}`);
    await page.getByRole('link', { name: job, exact: true }).click();
    await expect(page.locator('main')).toContainText('No job with this id is kept');
    await daemon.ask('POST', `/v1/plans/${plan}/cancel`, {});
});

test('a job whose payload is nested deeply shows its state and its payload, and is cancelled', async ({ page, world: { daemon }, world }) => {
    // Deeper than the stack of a browser, with a bracket within a string.
    const deep = `${'['.repeat(20_000)}"]",123456789012345678901234567890${']'.repeat(20_000)}`;
    const response = await fetch(`${daemon.url}/v1/jobs`, {
        method: 'POST',
        headers: { authorization: 'Bearer root', 'content-type': 'application/json' },
        body: `{"payload":{"tree":${deep},"beside":1},"requires":["quantum"]}`,
    });
    const { id } = (await response.json()) as { id: string };
    await enter(page, world, 'root', `#/jobs/${id}`);
    const state = page.locator('main .bar .badge').first();
    await expect(state).toHaveText('CREATED');
    const payload = page.getByRole('region', { name: 'Payload' }).last();
    await expect(payload).toContainText('[[["]",123456789012345678901234567890]]]');
    await expect(payload).toContainText('"beside": 1');
    await act(page, 'Cancel job');
    await expect(state).toHaveText('cancelled');
    expect((await daemon.ask('GET', `/v1/jobs/${id}`)).outcome).toBe('cancelled');
});

test('a retry whose answer is lost makes one job, also if it is pressed again', async ({ page, world: { daemon }, world, watch }) => {
    watch.allowsFailures = true;
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'] });
    await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
    await enter(page, world, 'root', `#/jobs/${id}`);
    await page.route(/\/retry\?once=true$/, async (route) => {
        await route.fetch();
        await route.abort();
    }, { times: 1 });
    await page.getByRole('button', { name: 'Retry job' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByRole('button', { name: 'Retry job' }).click();
    await expect(dialog.getByRole('alert')).toContainText('unreachable');
    const { retried_as: retry } = await daemon.ask('GET', `/v1/jobs/${id}`);
    await dialog.getByRole('button', { name: 'Retry job' }).click();
    await expect(page.locator('main h1')).toHaveText(retry);
    expect((await daemon.ask('GET', `/v1/jobs/${id}`)).retried_as).toBe(retry);
    await daemon.ask('POST', `/v1/jobs/${retry}/cancel`);
});

test('a job that somebody else retries while its dialog is open is not retried twice', async ({ page, world: { daemon }, world, watch }) => {
    watch.allowsFailures = true;
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'] });
    await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
    await enter(page, world, 'root', `#/jobs/${id}`);
    await page.getByRole('button', { name: 'Retry job' }).click();
    const { id: first } = await daemon.ask('POST', `/v1/jobs/${id}/retry`);
    const dialog = page.getByRole('dialog');
    await dialog.getByRole('button', { name: 'Retry job' }).click();
    await expect(dialog.getByRole('alert')).toContainText('conflict another job has retried this one');
    expect((await daemon.ask('GET', `/v1/jobs/${id}`)).retried_as).toBe(first);
    await dialog.getByRole('button', { name: 'Back' }).click();
    // Another dialog names that retry, and makes one more.
    await expect(page.locator('main .bar')).toContainText('retried as');
    await page.getByRole('button', { name: 'Retry job' }).click();
    await expect(dialog).toContainText('retried already');
    await dialog.getByRole('button', { name: 'Retry job' }).click();
    await expect(page.locator('main .bar')).toContainText('retry of');
    const { retried_as: second } = await daemon.ask('GET', `/v1/jobs/${id}`);
    expect(second).not.toBe(first);
    for (const retry of [first, second]) await daemon.ask('POST', `/v1/jobs/${retry}/cancel`);
});

test('a dead job is dismissed, and deleted', async ({ page, world: { daemon }, world, watch }) => {
    const { id } = await daemon.submit({ payload: 'fail', pool: 'batch', max_attempts: 1 });
    await daemon.reaches(id, 'FINISHED');
    await enter(page, world, 'root', `#/jobs/${id}`);
    await expect(page.locator('main .bar')).toContainText('dead');
    await act(page, 'Dismiss job');
    await expect(page.locator('main .bar')).toContainText('dismissed');
    await expect(page.getByRole('button', { name: 'Dismiss job' })).toHaveCount(0);
    const { dead, dismissed_at } = await daemon.ask('GET', `/v1/jobs/${id}`);
    expect([dead, typeof dismissed_at]).toEqual([false, 'string']);
    expect(await daemon.audited('dismiss_job', `job:${id}`)).toBe(1);
    // A poll may ask for the job between its end and the page's.
    watch.allowsFailures = true;
    await act(page, 'Delete job');
    await expect(page.locator('main h1')).toHaveText('Jobs');
    expect(await daemon.status('GET', `/v1/jobs/${id}`)).toBe(404);
    expect(await daemon.audited('delete_job', `job:${id}`)).toBe(1);
});

test('a bulk operation that has begun is cancelled', async ({ page, world: { daemon }, world }) => {
    // It would take ten minutes.
    const jobs = Array.from({ length: 600 }, (_, at) => ({ payload: at, requires: ['quantum'], tenant: 'slowly' }));
    await daemon.ask('POST', '/v1/jobs/batch', { jobs });
    const { id } = await daemon.ask('POST', '/v1/bulk', { action: 'cancel', filter: { tenant: 'slowly' }, rate: 1 });
    await enter(page, world, 'root', `#/bulk/${id}`);
    await expect(page.locator('main .bar')).toContainText('left');
    await act(page, 'Cancel operation');
    await expect(page.locator('main .bar')).toContainText('CANCELLED');
    const { done, matched } = await daemon.ask('GET', `/v1/bulk/${id}`);
    expect(matched).toBe(600);
    expect(done).toBeLessThan(600);
    expect(await daemon.audited('cancel_bulk', `bulk:${id}`)).toBe(1);
    await expect(page.getByRole('button', { name: 'Cancel operation' })).toHaveCount(0);
    // Other tests look for their jobs on the first page of all jobs.
    for (const action of ['cancel', 'delete']) {
        const bulk = await daemon.ask('POST', '/v1/bulk', { action, filter: { tenant: 'slowly' }, rate: 10_000 });
        await daemon.bulkEnds(bulk.id, 'DONE');
    }
});

test('a pool is paused with a reason and an end, and resumed', async ({ page, world: { daemon }, world }) => {
    const audited = (action: string) => daemon.audited(action, 'pool:idle');
    const pause = async () => (await daemon.ask('GET', '/v1/config/pools')).paused.find(({ pool }: { pool: string }) => pool === 'idle');
    await enter(page, world, 'root', '#/nodes');
    const pools = page.locator('section.card').filter({ hasText: 'version' });
    const row = pools.getByRole('row').filter({ has: page.getByRole('link', { name: 'idle', exact: true }) });
    const paused = page.getByRole('listitem').filter({ hasText: 'idle is paused' });
    const fill = async (button: string, values: Record<string, string>) => {
        await row.getByRole('button', { name: button, exact: true }).click();
        const dialog = page.getByRole('dialog');
        for (const [label, value] of Object.entries(values)) await dialog.getByLabel(label).fill(value);
        await dialog.getByRole('button', { name: button, exact: true }).click();
        await expect(dialog).toBeHidden();
    };
    const pausedAt = Date.now();
    await fill('Pause', { Reason: 'a new disk', 'For how many minutes': '90' });
    await expect(paused).toContainText('a new disk by root');
    await expect(row).toContainText('paused');
    const { reason, since, until: end } = await pause();
    expect([reason, Date.parse(end) - Date.parse(since)]).toEqual(['a new disk', 90 * 60_000]);
    // A change of the reason leaves the end where it is, to the minute that has begun when the dialog opens.
    await fill('Change pause', { Reason: 'the disk is on its way' });
    await expect(paused).toContainText('the disk is on its way');
    const kept = Date.parse((await pause()).until) - Date.parse(end);
    expect(kept).toBeGreaterThanOrEqual(0);
    expect(kept).toBeLessThanOrEqual(60_000 + Date.now() - pausedAt);
    await fill('Change pause', { Reason: 'the disk is late', 'For how many minutes': '' });
    await expect(paused).toContainText('until somebody resumes it');
    expect(await pause()).toMatchObject({ reason: 'the disk is late', until: null });
    expect(await audited('pause_pool')).toBe(3);
    await visit(page, '#/');
    await expect(paused).toContainText('the disk is late');
    await expect(page.getByRole('region', { name: 'Pools' }).last().getByRole('row', { name: /idle/ })).toContainText('paused');
    await paused.getByRole('button', { name: 'Resume' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Resume' }).click();
    await expect(paused).toHaveCount(0);
    expect(await pause()).toBeUndefined();
    expect(await audited('resume_pool')).toBe(1);
});

test('a dialog that is left does nothing, and gives the focus back', async ({ page, world }) => {
    await enter(page, world, 'root', `#/jobs/${world.running}`);
    const button = page.getByRole('button', { name: 'Cancel job' });
    await button.click();
    await page.keyboard.press('Escape');
    await expect(page.getByRole('dialog')).toBeHidden();
    await expect(button).toBeFocused();
    expect((await world.daemon.ask('GET', `/v1/jobs/${world.running}`)).state).toBe('RUNNING');
});

test('a session is closed', async ({ page, world: { daemon }, world }) => {
    const { id } = await daemon.ask('POST', '/v1/sessions', {});
    await enter(page, world, 'root', `#/sessions/${id}`);
    await act(page, 'Close session');
    await expect(page.locator('main .bar .badge')).toHaveText('closed');
    expect((await daemon.ask('GET', `/v1/sessions/${id}`)).closed_at).not.toBeNull();
});

test('a node is drained and undrained', async ({ page, world: { daemon }, world }) => {
    await enter(page, world, 'root', '#/nodes/alpha-1');
    await act(page, 'Drain');
    await expect(page.locator('main .bar .badge')).toHaveText('draining');
    expect((await daemon.ask('GET', '/v1/nodes/alpha-1')).state).toBe('draining');
    expect(await daemon.audited('drain_node', 'node:alpha-1')).toBe(1);
    await act(page, 'Undrain');
    await expect(page.locator('main .bar .badge')).toHaveText('online');
    expect(await daemon.audited('undrain_node', 'node:alpha-1')).toBe(1);
});

test('a dialog that drains a node does not undrain it when somebody else was faster', async ({ page, world: { daemon }, world }) => {
    await enter(page, world, 'root', '#/nodes/beta-1');
    await page.getByRole('button', { name: 'Drain' }).click();
    await daemon.ask('POST', '/v1/nodes/beta-1/drain');
    await expect(page.locator('main .bar .badge')).toHaveText('draining');
    const dialog = page.getByRole('dialog');
    await dialog.getByRole('button', { name: 'Drain', exact: true }).click();
    await expect(dialog).toBeHidden();
    expect((await daemon.ask('GET', '/v1/nodes/beta-1')).state).toBe('draining');
    await daemon.ask('POST', '/v1/nodes/beta-1/undrain');
});

test('a dialog that drains a node and the explanation of a placement speak of one as of one', async ({ page, world }) => {
    let used = 0;
    await page.route('**/v1/nodes/beta-1', async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), used } });
    });
    await enter(page, world, 'root', '#/nodes/beta-1');
    const dialog = page.getByRole('dialog');
    for (const [jobs, says] of [[0, 'has no job, and gets none until'], [1, 'finishes the job that it has'], [2, 'finishes the 2 jobs that it has']] as const) {
        used = jobs;
        await expect(page.locator('main')).toContainText(`${jobs} of 8`);
        await page.getByRole('button', { name: 'Drain' }).click();
        await expect(dialog).toContainText(says);
        await page.keyboard.press('Escape');
        await expect(dialog).toBeHidden();
    }
    await page.route('**/v1/nodes/select', (route) => route.fulfill({ json: { node: null, pool: null, considered: 1, rejected: { labels: 1 }, took_us: 1 } }));
    await visit(page, '#/nodes?requires=quantum');
    await expect(page.locator('.explained')).toContainText('The only node that was considered cannot take it now.');
    await expect(page.locator('.explained')).toContainText('1 lacks a label');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('the placement is explained', async ({ page, world }) => {
    await enter(page, world, 'viewer', '#/nodes');
    await page.getByLabel('Requires').fill('gpu, asr:zh');
    await page.getByRole('button', { name: 'Explain' }).click();
    await expect(page.locator('.explained')).toContainText('would go to alpha-1');
    await page.getByLabel('Requires').fill('quantum');
    await page.getByRole('button', { name: 'Explain' }).click();
    await expect(page.locator('.explained')).toContainText('2 lack a label');
    await page.getByLabel('Requires').fill('');
    for (const wrong of ['zh-en', 'zh:', ':en']) {
        await page.getByLabel('Route').fill(wrong);
        await page.getByRole('button', { name: 'Explain' }).click();
        await expect(page.locator('main').getByRole('alert')).toContainText(`invalid Route: ${wrong} is not two languages`);
        await expect(page.locator('.explained')).toHaveCount(0);
    }
});

test('a late answer about a placement does not replace that of a later question', async ({ page, world }) => {
    let answer = (): void => undefined;
    const answered = new Promise<void>((resolve) => (answer = resolve));
    const isOf = (label: string) => (of: { postData(): string | null }) => of.postData()?.includes(label) ?? false;
    await page.route('**/v1/nodes/select', async (route) => {
        if (isOf('quantum')(route.request())) await answered;
        await route.continue();
    });
    await enter(page, world, 'viewer', '#/nodes');
    const explain = page.getByRole('button', { name: 'Explain' });
    for (const label of ['quantum', 'gpu']) {
        const asked = page.waitForRequest(isOf(label));
        await page.getByLabel('Requires').fill(label);
        await explain.click();
        await asked;
    }
    await expect(page.locator('.explained')).toContainText('would go to alpha-1');
    const late = page.waitForResponse((response) => isOf('quantum')(response.request()));
    answer();
    await (await late).finished();
    // What is asked last is heard last.
    await page.evaluate(() => fetch('/readyz'));
    await expect(page.locator('.explained')).toContainText('would go to alpha-1');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a quarantined nonce is resolved only by who types its number', async ({ page, world: { daemon }, world }) => {
    const { signer } = world;
    const listed = await daemon.ask('GET', `/v1/signers/${signer}/nonces?status=QUARANTINED`);
    const [first, second] = listed.items.map((item: { nonce: number }) => String(item.nonce));
    await enter(page, world, 'root', `#/signers/${signer}`);
    const row = page.locator('main tbody tr').filter({ has: page.getByRole('cell', { name: first, exact: true }) });
    await row.getByRole('button', { name: 'Resolve' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Transaction hash').fill('0xfeed');
    const confirm = dialog.getByRole('button', { name: 'Resolve the nonce' });
    await expect(confirm).toBeDisabled();
    await dialog.getByLabel(/^Type/).fill(second);
    await expect(confirm).toBeDisabled();
    await dialog.getByLabel(/^Type/).fill(first);
    // Neither outcome is one that a hurried person may leave as it is.
    const outcome = dialog.getByLabel('Outcome');
    await expect(outcome).toHaveValue('');
    await confirm.click();
    await expect(outcome).toBeFocused();
    await outcome.selectOption('consumed');
    await confirm.click();
    await expect(dialog).toBeHidden();
    await expect(row).toHaveCount(0);
    const { items } = await daemon.ask('GET', `/v1/signers/${signer}/nonces?status=CONSUMED`);
    expect(items.find((item: { nonce: number }) => String(item.nonce) === first).tx_hash).toBe('0xfeed');
    expect(await daemon.audited('resolve_nonce', `signer:${signer} nonce ${first}`)).toBe(1);
});

/** Confirms that the job of the page is cancelled, which is refused once `answer` is called. */
async function refusedLate(page: Page): Promise<{ dialog: Locator; answer: () => void }> {
    let answer = (): void => undefined;
    const answered = new Promise<void>((resolve) => (answer = resolve));
    await page.route('**/cancel', async (route) => {
        await answered;
        await route.fulfill({ status: 409, json: { code: 'conflict', detail: 'it is too late' } });
    });
    await page.getByRole('button', { name: 'Cancel job' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByRole('button', { name: 'Cancel job' }).click();
    await expect(dialog.getByRole('button', { name: 'Working…' })).toBeVisible();
    return { dialog, answer };
}

test('a dialog stays until it knows what became of its action', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'root', `#/jobs/${world.running}`);
    const { dialog, answer } = await refusedLate(page);
    await expect(dialog.getByRole('button', { name: 'Back' })).toBeDisabled();
    for (let press = 0; press < 3; press += 1) await page.keyboard.press('Escape');
    await expect(dialog).toBeVisible();
    answer();
    await expect(dialog.getByRole('alert')).toContainText('it is too late');
    // It was disabled meanwhile, and can be pressed again.
    await expect(dialog.getByRole('button', { name: 'Cancel job' })).toBeFocused();
    await dialog.getByRole('button', { name: 'Back' }).click();
    await expect(dialog).toBeHidden();
});

test('a dialog says why its action was refused, although the button that opened it has gone', async ({ page, world: { daemon }, world, watch }) => {
    watch.allowsFailures = true;
    const { id } = await daemon.submit({ payload: 'x', requires: ['quantum'] });
    await enter(page, world, 'root', `#/jobs/${id}`);
    const { dialog, answer } = await refusedLate(page);
    await daemon.ask('POST', `/v1/jobs/${id}/cancel`);
    await expect(page.locator('main .bar .badge').first()).toHaveText('cancelled');
    answer();
    await expect(dialog.getByRole('alert')).toContainText('it is too late');
    await dialog.getByRole('button', { name: 'Back' }).click();
    await expect(dialog).toBeHidden();
    await expect(page.locator('main')).toBeFocused();
});

test('a dialog goes with its page, but not while its action is under way', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'root', `#/jobs/${world.running}`);
    const dialog = page.getByRole('dialog');
    await page.getByRole('button', { name: 'Cancel job' }).click();
    await expect(dialog).toBeVisible();
    await visit(page, '#/cluster');
    await expect(dialog).toBeHidden();
    await expect(page.locator('main')).toBeFocused();
    let answer = (): void => undefined;
    const answered = new Promise<void>((resolve) => (answer = resolve));
    await page.route('**/cancel', async (route) => {
        await answered;
        await route.fulfill({ status: 409, json: { code: 'conflict', detail: 'it is too late' } });
    });
    await visit(page, `#/jobs/${world.running}`);
    await page.getByRole('button', { name: 'Cancel job' }).click();
    await dialog.getByRole('button', { name: 'Cancel job' }).click();
    await expect(dialog.getByRole('button', { name: 'Working…' })).toBeVisible();
    await visit(page, '#/cluster');
    await expect(page.locator('main h1')).toHaveText('Cluster');
    answer();
    await expect(dialog.getByRole('alert')).toContainText('it is too late');
});

test('a number that is none, or too large, is refused in its dialog and changes no policy', async ({ page, world: { daemon }, world }) => {
    const signer = 'eip155:1:0xef';
    const policy = async () => (await daemon.ask('GET', `/v1/signers/${signer}`)).policy;
    await daemon.ask('POST', `/v1/signers/${signer}/nonces`, { count: 1 });
    await daemon.ask('PUT', `/v1/signers/${signer}/policy`, { hold_ms: 60_000, max_in_flight: 64 });
    await enter(page, world, 'root', `#/signers/${signer}`);
    const sent: unknown[] = [];
    page.on('request', (request) => request.method() === 'PUT' && sent.push(request.postDataJSON()));
    await page.getByRole('button', { name: 'Change policy' }).click();
    const dialog = page.getByRole('dialog');
    const refuses = async (label: string, kept: string, most: string, texts: string[]) => {
        for (const text of texts) {
            await dialog.getByLabel(label).fill(text);
            await dialog.getByRole('button', { name: 'Change policy' }).click();
            await expect(dialog.getByRole('alert'), text).toContainText(`${label}: not a whole number from 1 to ${most}`);
            await dialog.getByLabel(label).fill(kept);
        }
    };
    const wrong = ['1OO', '1,00', '1.5', '1e3', '-1', '0', '1 000', '1.000', 'none'];
    await refuses('Most nonces in flight', '64', '1,000,000', [...wrong, '1000001']);
    await refuses('Hold, in ms', '60000', '604,800,000', [...wrong, '604800001']);
    expect(sent).toEqual([]);
    expect(await policy()).toMatchObject({ hold_ms: 60_000, max_in_flight: 64 });
    // As the page writes it.
    await dialog.getByLabel('Most nonces in flight').fill(' 1,000,000 ');
    await dialog.getByRole('button', { name: 'Change policy' }).click();
    await expect(dialog).toBeHidden();
    expect(sent).toEqual([{ max_in_flight: 1_000_000 }]);
    await expect(page.locator('main')).toContainText('1,000,000');
    await act(page, 'Change policy', { 'Most nonces in flight': '' });
    expect(await policy()).toMatchObject({ hold_ms: 60_000, max_in_flight: null });
});

test('a refused decision keeps its dialog and says why', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'root', `#/signers/${world.signer}`);
    await page.route('**/policy', (route) => route.fulfill({ status: 400, json: { code: 'invalid', detail: 'hold_ms is too short' } }));
    await page.getByRole('button', { name: 'Change policy' }).click();
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Hold, in ms').fill('1');
    await dialog.getByRole('button', { name: 'Change policy' }).click();
    await expect(dialog.getByRole('alert')).toContainText('hold_ms is too short');
    await dialog.getByRole('button', { name: 'Back' }).click();
    await expect(dialog).toBeHidden();
});

test('a policy is changed', async ({ page, world: { daemon }, world }) => {
    await enter(page, world, 'root', `#/signers/${world.signer}`);
    await act(page, 'Change policy', { 'When a hold expires': 'quarantine', 'Hold, in ms': '90000', 'Most nonces in flight': '64', 'Idempotency keys': 'shared by all tokens' });
    const { policy } = await daemon.ask('GET', `/v1/signers/${world.signer}`);
    expect(policy).toMatchObject({ on_expiry: 'quarantine', hold_ms: 90_000, max_in_flight: 64, shared_keys: true });
    await expect(page.locator('main')).toContainText('64');
    expect(await daemon.audited('set_policy', `signer:${world.signer}`)).toBe(1);
});

test('a change of a policy leaves what another operator has changed meanwhile', async ({ page, world: { daemon }, world }) => {
    const signer = 'eip155:1:0xcd';
    await daemon.ask('POST', `/v1/signers/${signer}/nonces`, { count: 1 });
    await daemon.ask('PUT', `/v1/signers/${signer}/policy`, { hold_ms: 60_000 });
    await enter(page, world, 'root', `#/signers/${signer}`);
    await page.getByRole('button', { name: 'Change policy' }).click();
    await daemon.ask('PUT', `/v1/signers/${signer}/policy`, { hold_ms: 77_000 });
    await expect(page.locator('main')).toContainText('1 min 17 s');
    const dialog = page.getByRole('dialog');
    await dialog.getByLabel('Most nonces in flight').fill('65');
    await dialog.getByRole('button', { name: 'Change policy' }).click();
    await expect(dialog).toBeHidden();
    expect((await daemon.ask('GET', `/v1/signers/${signer}`)).policy).toMatchObject({ hold_ms: 77_000, max_in_flight: 65 });
});

test('a signer\u2019s next nonce is confirmed with a number only', async ({ page, world }) => {
    await page.route(`**/v1/signers/${encodeURIComponent(world.signer)}`, async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), recovering: true } });
    });
    const confirmed: unknown[] = [];
    await page.route('**/confirm', (route) => {
        confirmed.push(route.request().postDataJSON());
        return route.fulfill({ json: {} });
    });
    await enter(page, world, 'root', `#/signers/${world.signer}`);
    await page.getByRole('button', { name: 'Confirm next nonce' }).click();
    const dialog = page.getByRole('dialog');
    // No node counts a nonce that was granted after the backup and is not sent yet.
    await expect(dialog).toContainText('Stop the account\u2019s senders first.');
    await expect(dialog).toContainText('above all that senders had, sent or not');
    const nonce = dialog.getByLabel('Next nonce');
    await nonce.press('Space');
    await dialog.getByRole('button', { name: 'Confirm next nonce' }).click();
    await expect(dialog).toBeVisible();
    await nonce.fill('0');
    await dialog.getByRole('button', { name: 'Confirm next nonce' }).click();
    await expect(dialog).toBeHidden();
    expect(confirmed).toEqual([{ next_nonce: 0 }]);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a snowflake is made and decoded', async ({ page, world }) => {
    await enter(page, world, 'maker', '#/ids');
    await page.getByRole('button', { name: 'Make one' }).click();
    await expect(page.getByLabel('Snowflake id')).toHaveValue(/^\d+$/);
    const id = await page.getByLabel('Snowflake id').inputValue();
    const parts = await world.daemon.ask('GET', `/v1/ids/snowflake/${id}`);
    await expect(page.locator('main')).toContainText(parts.timestamp);
});

test('a plan is started, paused, resumed and cancelled', async ({ page, world: { daemon }, world }) => {
    const stages = [{ name: 'only', payload: 'slow', requires: ['quantum'] }];
    const { id } = await daemon.ask('POST', '/v1/plans', { name: 'by hand', tasks: [{ tenant: 'hooli', stages }], start: false });
    await enter(page, world, 'root', `#/plans/${id}`);
    const plan = () => daemon.ask('GET', `/v1/plans/${id}`);
    await act(page, 'Start plan');
    await until('the plan runs', async () => (await plan()).status === 'RUNNING');
    await act(page, 'Pause plan', { Reason: 'lunch' });
    expect((await plan()).intent).toBe('pause');
    await expect(page.locator('main')).toContainText('lunch');
    await act(page, 'Resume plan');
    expect((await plan()).intent).toBe('run');
    await act(page, 'Cancel plan', { Reason: 'enough' });
    await until('the plan is cancelled', async () => (await plan()).status === 'CANCELLED');
    for (const action of ['start_plan', 'pause_plan', 'resume_plan', 'cancel_plan']) expect(await daemon.audited(action, `plan:${id}`)).toBe(1);
    await expect(page.locator('main .bar .badge').first()).toHaveText('CANCELLED');
});

test('what is resumed, cancelled or retried says what follows for the other tasks', async ({ page, world: { failedPlan, failedTask }, world }) => {
    let changed: object = {};
    await page.route(`**/v1/plans/${failedPlan}`, async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), ...changed } });
    });
    await enter(page, world, 'root', `#/plans/${failedPlan}`);
    const dialog = page.getByRole('dialog');
    for (const [change, shown, says] of [
        [{}, 'stop_new', 'Tasks that had no turn start when no task is FAILED or INTERRUPTED any more.'],
        [{ on_failure: 'continue' }, 'continue', 'Paused and pending tasks go on.'],
        [{ over_time: true }, 'over time', 'no other one starts until it is retried'],
    ] as const) {
        changed = change;
        await expect(page.locator('main')).toContainText(shown);
        await page.locator('main').getByRole('button', { name: 'Resume plan' }).click();
        await expect(dialog).toContainText(says);
        await dialog.getByRole('button', { name: 'Back' }).click();
    }
    await page.unrouteAll({ behavior: 'ignoreErrors' });
    const others = 'Tasks of its plan that it holds back start then';
    await visit(page, `#/tasks/${failedTask}`);
    await page.locator('main').getByRole('button', { name: 'Cancel task' }).click();
    await expect(dialog).toContainText(others);
    await dialog.getByRole('button', { name: 'Back' }).click();
    await page.locator('main').getByLabel('Reason').fill('mended');
    await page.getByRole('button', { name: 'Try without effect' }).click();
    await expect(page.locator('main')).toContainText(others);
});

test('a task is paused and resumed', async ({ page, world: { daemon }, world }) => {
    await enter(page, world, 'root', `#/tasks/${world.task}`);
    await act(page, 'Pause task');
    expect((await daemon.ask('GET', `/v1/tasks/${world.task}`)).intent).toBe('pause');
    await act(page, 'Resume task');
    expect((await daemon.ask('GET', `/v1/tasks/${world.task}`)).intent).toBe('run');
});

test('a stage is resolved for the job that the dialog names, although the stage has another one by then', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    const [job, other] = [world.failed, world.succeeded];
    let current = job;
    await page.route(`**/v1/tasks/${world.failedTask}`, async (route) => {
        const response = await route.fetch();
        const task = await response.json();
        const [first, ...others] = task.stages;
        await route.fulfill({ response, json: { ...task, stages: [{ ...first, status: 'UNKNOWN', job: current, attempts: 0 }, ...others] } });
    });
    const asked: unknown[] = [];
    await page.route('**/resolve', (route) => {
        asked.push(route.request().postData());
        return route.fulfill({ status: 409, json: { code: 'conflict', detail: 'the stage has another job now' } });
    });
    await enter(page, world, 'root', `#/tasks/${world.failedTask}`);
    await page.getByRole('button', { name: 'Resolve' }).click();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toContainText(job);
    await expect(dialog).toContainText('No attempt of the stage prepare has begun so far');
    current = other;
    await expect(page.locator(`main a[href="#/jobs/${other}"]`)).toHaveCount(1);
    await dialog.getByLabel('Reason').fill('the table is there');
    const resolve = dialog.getByRole('button', { name: 'Resolve' });
    const outcome = dialog.getByLabel('Outcome');
    await expect(outcome).toHaveValue('');
    await resolve.click();
    await expect(outcome).toBeFocused();
    expect(asked).toEqual([]);
    await outcome.selectOption('done');
    await resolve.click();
    await expect(dialog.getByRole('alert')).toContainText('the stage has another job now');
    const said = `{"outcome":"done","reason":"the table is there","job":"${job}"`;
    expect(asked).toEqual([`${said}}`]);
    // The next stage gets the context as it is typed, with all its digits.
    for (const wrong of ['{"schema": 12', '[12]', '12', 'null']) {
        await dialog.getByLabel('Context').fill(wrong);
        await resolve.click();
        await expect(dialog.getByRole('alert')).toContainText('Context: not a JSON object');
    }
    const context = '{"schema": 12345678901234567890}';
    await dialog.getByLabel('Context').fill(context);
    await resolve.click();
    await expect.poll(() => asked).toEqual([`${said}}`, `${said},"context":${context}}`]);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a second press of the button that tries a retry only tries it again', async ({ page, world }) => {
    await enter(page, world, 'root', `#/tasks/${world.failedTask}`);
    const asked: { dry_run?: boolean }[] = [];
    page.on('request', (request) => request.method() === 'POST' && asked.push(request.postDataJSON()));
    const reason = page.locator('main').getByLabel('Reason');
    await reason.fill('mended');
    const { x, y, width, height } = (await page.getByRole('button', { name: 'Try without effect' }).boundingBox())!;
    await page.mouse.click(x + width / 2, y + height / 2);
    await expect(page.locator('main')).toContainText('The run 2 would begin');
    await page.mouse.click(x + width / 2, y + height / 2);
    await reason.press('Enter');
    await expect.poll(() => asked.length).toBe(3);
    expect(asked.map(({ dry_run }) => dry_run)).toEqual([true, true, true]);
    expect((await world.daemon.ask('GET', `/v1/tasks/${world.failedTask}`)).run).toBe(1);
});

test('a retry expects the run that its dry run has shown, and what was shown goes with that run', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'root', `#/tasks/${world.failedTask}`);
    await page.locator('main').getByLabel('Reason').fill('mended');
    await page.getByRole('button', { name: 'Try without effect' }).click();
    const retry = page.getByRole('button', { name: 'Retry the task' });
    await expect(retry).toBeVisible();
    let expected: unknown;
    await page.route('**/retry', (route) => {
        expected = route.request().postDataJSON().expect;
        return route.fulfill({ status: 409, json: { code: 'conflict', detail: 'the task has changed' } });
    });
    await retry.click();
    await expect(page.locator('main').getByRole('alert')).toContainText('the task has changed');
    await expect(retry).toBeFocused();
    expect(expected).toMatchObject({ run: 1 });
    await page.route(`**/v1/tasks/${world.failedTask}`, async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: { ...(await response.json()), run: 41 } });
    });
    await expect(page.getByRole('region', { name: 'Task', exact: true })).toContainText('41');
    await expect(retry).toHaveCount(0);
    await expect(page.locator('main').getByRole('alert')).toHaveCount(0);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('what a dry run has shown goes when the task has another checkpoint', async ({ page, world }) => {
    await enter(page, world, 'root', `#/tasks/${world.failedTask}`);
    const reason = page.locator('main').getByLabel('Reason');
    await reason.fill('mended');
    await page.getByRole('button', { name: 'Try without effect' }).click();
    const retry = page.getByRole('button', { name: 'Retry the task' });
    await expect(retry).toBeVisible();
    await page.route(`**/v1/tasks/${world.failedTask}`, async (route) => {
        const response = await route.fetch();
        const task = await response.json();
        await route.fulfill({ response, json: { ...task, checkpoint_version: task.checkpoint_version + 1 } });
    });
    await expect(retry).toHaveCount(0);
    await expect(reason).toHaveValue('mended');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a retry of a task whose answer is lost begins one run, also if it is pressed again, twice', async ({ page, world: { daemon }, world, watch }) => {
    watch.allowsFailures = true;
    const stages = [{ name: 'only', payload: 'fail', requires: ['deploy'] }];
    const { id: plan } = await daemon.ask('POST', '/v1/plans', { tasks: [{ tenant: 'cyberdyne', stages }], start: true });
    const newest = async () => (await daemon.ask('GET', `/v1/plans/${plan}/tasks`)).items[0];
    await until('the task fails', async () => (await newest()).status === 'FAILED');
    const { id } = await newest();
    const failed = await daemon.ask('GET', `/v1/tasks/${id}`);
    // The page does not hear of the new run.
    await page.route(`**/v1/tasks/${id}`, (route) => route.fulfill({ json: failed }));
    const keys: (string | undefined)[] = [];
    let release = (): void => undefined;
    const released = new Promise<void>((resolve) => (release = resolve));
    await page.route('**/retry', async (route) => {
        const request = route.request();
        if (request.postDataJSON().dry_run) return route.continue();
        keys.push(request.headers()['idempotency-key']);
        const response = await route.fetch();
        if (keys.length === 1) return route.abort();
        await released;
        await route.fulfill({ response });
    });
    await enter(page, world, 'root', `#/tasks/${id}`);
    await page.locator('main').getByLabel('Reason').fill('mended');
    await page.getByRole('button', { name: 'Try without effect' }).click();
    const retry = page.getByRole('button', { name: 'Retry the task' });
    await retry.click();
    await expect(page.locator('main').getByRole('alert')).toContainText('unreachable');
    await retry.dblclick();
    await expect(page.getByRole('button', { name: 'Working…' })).toBeDisabled();
    await expect(page.locator('main')).toContainText('would begin');
    await expect(page.locator('main')).not.toContainText('Nothing has changed yet');
    release();
    await expect(page.locator('main')).not.toContainText('would begin');
    await expect(page.locator('main').getByRole('alert')).toHaveCount(0);
    expect(keys).toEqual([keys[0], keys[0]]);
    expect(keys[0]).toMatch(/^dashboard-/);
    expect((await newest()).run).toBe(2);
    expect(await daemon.audited('retry_task', `task:${id}`)).toBe(1);
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});

test('a failed task is retried after a dry run that changes nothing', async ({ page, world: { daemon }, world }) => {
    await enter(page, world, 'root', `#/tasks/${world.failedTask}`);
    await page.locator('main').getByLabel('Reason').fill('mended');
    await page.getByRole('button', { name: 'Try without effect' }).click();
    await expect(page.locator('main')).toContainText('The run 2 would begin with migrate and skip prepare');
    expect((await daemon.ask('GET', `/v1/tasks/${world.failedTask}`)).run).toBe(1);
    await page.getByRole('button', { name: 'Retry the task' }).click();
    await until('the second run began', async () => (await daemon.ask('GET', `/v1/tasks/${world.failedTask}`)).run === 2);
    expect(await daemon.audited('retry_task', `task:${world.failedTask}`)).toBe(1);
});

test('a tenant\u2019s lock is broken only by who types its token', async ({ page, world: { daemon }, world }) => {
    const stages = [{ name: 'only', payload: 'slow', requires: ['deploy'] }];
    await daemon.ask('POST', '/v1/plans', { tasks: [{ tenant: 'tyrell', stages }], start: true });
    const tenant = () => daemon.ask('GET', '/v1/tenants/tyrell');
    await until('the task runs', async () => (await tenant()).task.status === 'RUNNING');
    const { lock } = await tenant();
    await enter(page, world, 'root', '#/tenants/tyrell');
    await page.getByRole('button', { name: 'Break lock' }).click();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toContainText('a FAILED one stays FAILED');
    await dialog.getByLabel('Reason').fill('its node is gone');
    await expect(dialog.getByRole('button', { name: 'Break lock' })).toBeDisabled();
    await dialog.getByLabel(/^Type/).fill(String(lock.token));
    await dialog.getByRole('button', { name: 'Break lock' }).click();
    await expect(dialog).toBeHidden();
    await until('the lock is broken', async () => (await tenant()).lock?.token !== lock.token);
    expect(await daemon.audited('break_lock', 'tenant:tyrell')).toBe(1);
    await visit(page, '#/audit?action=break_lock');
    await expect(page.locator('main')).toContainText('its node is gone');
});

const modeCard = (page: Page) => page.getByRole('region', { name: 'Mode', exact: true });

test('a token without admin is not offered another mode', async ({ page, world: { daemon }, world }) => {
    const { mode } = await daemon.ask('GET', '/v1/config/mode');
    await enter(page, world, 'maker', '#/cluster');
    await expect(modeCard(page)).toContainText(mode);
    await expect(page.getByRole('button', { name: /^Change to / })).toHaveCount(0);
});

test('an operator who types the mode changes it', async ({ page, world: { daemon }, world }) => {
    const modes = ['basic', 'worker-queue'];
    const { mode: from, version } = await daemon.ask('GET', '/v1/config/mode');
    const to = modes.find((mode) => mode !== from)!;
    await enter(page, world, 'root', '#/cluster');
    const card = modeCard(page);
    await expect(card).toContainText(from);
    for (const [mode, number] of [[to, version + 1], [from, version + 2]]) {
        await page.getByRole('button', { name: `Change to ${mode}` }).click();
        const dialog = page.getByRole('dialog');
        const confirm = dialog.getByRole('button', { name: 'Change the mode' });
        await expect(confirm).toBeDisabled();
        await dialog.getByLabel(/^Type/).fill(mode === to ? from : to);
        await expect(confirm).toBeDisabled();
        expect((await daemon.ask('GET', '/v1/config/mode')).version, 'nothing was changed yet').toBe(number - 1);
        await dialog.getByLabel(/^Type/).fill(mode);
        await confirm.click();
        await expect(dialog).toBeHidden();
        await expect(page.getByRole('button', { name: `Change to ${mode === to ? from : to}` })).toBeVisible();
        await expect(card).toContainText(String(number));
        const { mode: now, version: newest } = await daemon.ask('GET', '/v1/config/mode');
        expect([now, newest]).toEqual([mode, number]);
        expect(await daemon.audited('set_mode', 'config:mode')).toBe(number - version);
    }
});
