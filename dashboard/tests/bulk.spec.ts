// What is done to all jobs that match a filter: which actions are offered, what their dialogs count, and what the daemon did.

import { enter, expect, KIND, test, visit } from './world';

const BULK = ['retry', 'cancel', 'delete', 'dismiss'];

test('each list offers the bulk actions that the daemon takes with its filters', async ({ page, world: { daemon }, world }) => {
    await enter(page, world, 'maker', '#/jobs');
    const lists = [
        '', 'state=CREATED', 'state=RUNNING', 'state=FINISHED', 'outcome=failed', 'outcome=succeeded', 'outcome=cancelled', 'dead=true', 'dead=false',
        'pool=batch', `kind=${KIND}`, 'state=FINISHED&dead=true', 'state=FINISHED&outcome=timed_out&tenant=acme', 'state=RUNNING&outcome=failed',
    ];
    for (const query of lists) {
        const named = [...new URLSearchParams(query)].map(([name, value]) => [name, name === 'dead' ? value === 'true' : value]);
        const filter = Object.fromEntries(named);
        await visit(page, `#/jobs?${query}`);
        for (const action of BULK) {
            const status = await daemon.status('POST', '/v1/bulk', { action, filter, dry_run: true });
            const button = page.getByRole('button', { name: new RegExp(`^${action} all$`, 'i') });
            await expect(button, `${action} with ${query}: ${status}`).toHaveCount(status === 200 ? 1 : 0);
        }
    }
});

test('all jobs that match are cancelled by who types their number, after a dry run that changes nothing', async ({ page, world: { daemon }, world }) => {
    const jobs: string[] = [];
    for (let at = 0; at < 3; at += 1) jobs.push((await daemon.submit({ payload: at, requires: ['quantum'], tenant: 'many' })).id);
    await enter(page, world, 'root', '#/jobs?tenant=many');
    await page.getByRole('button', { name: 'Cancel all' }).click();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toContainText('3 jobs match now');
    await expect(dialog).toContainText('tenant many');
    const confirm = dialog.getByRole('button', { name: 'Cancel 3 jobs' });
    await expect(confirm).toBeDisabled();
    for (const job of jobs) expect((await daemon.ask('GET', `/v1/jobs/${job}`)).state).toBe('CREATED');
    await dialog.getByLabel(/^Type/).fill('3');
    await dialog.getByLabel('Jobs per second at most').fill('50');
    await confirm.click();
    await expect(page.locator('main .bar')).toContainText('DONE');
    await expect(page.locator('main')).toContainText('3 of 3');
    await expect(page.locator('main')).toContainText('50 jobs per second at most');
    for (const job of jobs) expect((await daemon.ask('GET', `/v1/jobs/${job}`)).outcome).toBe('cancelled');
    const id = await page.locator('main h1').innerText();
    expect(await daemon.audited('bulk_cancel', `bulk:${id}`)).toBe(1);
    await visit(page, '#/bulk');
    await expect(page.locator('main tbody tr').first()).toContainText('tenant many');
});

test('dead jobs are retried, dismissed and deleted together', async ({ page, world: { daemon }, world }) => {
    const fails = async () => {
        const { id } = await daemon.submit({ payload: 'fail', kind: 'flaky', pool: 'batch', max_attempts: 1 });
        return (await daemon.reaches(id, 'FINISHED')) as { id: string };
    };
    const [first, second] = [await fails(), await fails()];
    const begun = async (button: string, confirm: string, typed?: string): Promise<void> => {
        await page.getByRole('button', { name: button, exact: true }).click();
        const dialog = page.getByRole('dialog');
        if (typed !== undefined) await dialog.getByLabel(/^Type/).fill(typed);
        await dialog.getByRole('button', { name: confirm, exact: true }).click();
        await expect(page.locator('main .bar')).toContainText('DONE');
        const action = button.split(' ')[0]!.toLowerCase();
        expect(await daemon.audited(`bulk_${action}`, `bulk:${await page.locator('main h1').innerText()}`)).toBe(1);
    };
    await enter(page, world, 'root', '#/jobs?kind=flaky&dead=true');
    await begun('Retry all', 'Retry 2 jobs');
    for (const { id } of [first, second]) {
        const { retried_as: retry } = await daemon.ask('GET', `/v1/jobs/${id}`);
        expect((await daemon.reaches(retry, 'FINISHED')).retry_of).toBe(id);
    }
    await visit(page, `#/jobs/${first.id}`);
    await expect(page.locator('main .bar')).toContainText('retried as');
    await visit(page, '#/jobs?kind=flaky&dead=true');
    await begun('Dismiss all', 'Dismiss 2 jobs');
    expect((await daemon.ask('GET', '/v1/jobs?kind=flaky&dead=true')).items).toEqual([]);
    await visit(page, '#/jobs?kind=flaky');
    await begun('Delete all', 'Delete 4 jobs', '4');
    expect((await daemon.ask('GET', '/v1/jobs?kind=flaky')).items).toEqual([]);
});

test('the dialog that dismisses all dead jobs has the number of the dry run, and says what it covers', async ({ page, world: { daemon }, world }) => {
    const matched = async () => (await daemon.ask('POST', '/v1/bulk', { action: 'dismiss', filter: {}, dry_run: true })).matched as number;
    const { id } = await daemon.submit({ payload: 'fail', pool: 'batch', max_attempts: 1 });
    await daemon.reaches(id, 'FINISHED');
    // The list shows the job of the failed stage too.
    expect((await daemon.ask('GET', '/v1/jobs?dead=true')).items.length).toBeGreaterThan(await matched());
    await enter(page, world, 'root', '#/jobs');
    await page.getByRole('button', { name: 'Dismiss all' }).click();
    const dialog = page.getByRole('dialog');
    const jobs = (await matched()) === 1 ? '1 job' : `${await matched()} jobs`;
    await expect(dialog).toContainText(new RegExp(`${jobs} match(es)? now: every dead job that is no stage of a plan`));
    await expect(dialog).toContainText('Stages of plans are not counted and stay as they are, even if the list shows them.');
    await expect(dialog.getByRole('button', { name: `Dismiss ${jobs}` })).toBeEnabled();
    await page.keyboard.press('Escape');
    await daemon.ask('DELETE', `/v1/jobs/${id}`);
});

test('a bulk dialog acts on the jobs that it counted, although the list behind it changes', async ({ page, world: { daemon }, world }) => {
    const { id } = await daemon.submit({ payload: 'fail', kind: 'counted', pool: 'batch', max_attempts: 1 });
    await daemon.reaches(id, 'FINISHED');
    await enter(page, world, 'root', '#/jobs?dead=true');
    await visit(page, '#/jobs?kind=counted');
    await page.getByRole('button', { name: 'Delete all' }).click();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toContainText('1 job matches now: kind counted');
    await page.goBack();
    await expect(page).toHaveURL(/#\/jobs\?dead=true$/);
    await expect(page.locator('#filter-dead')).toHaveValue('true');
    await dialog.getByLabel(/^Type/).fill('1');
    const begun = page.waitForRequest('**/v1/bulk');
    await dialog.getByRole('button', { name: 'Delete 1 job' }).click();
    expect((await begun).postDataJSON().filter).toEqual({ kind: 'counted' });
    await expect(page.locator('main .bar')).toContainText('DONE');
});

test('a bulk dialog leaves out what came after its dry run', async ({ page, world: { daemon }, world }) => {
    const submit = async () => (await daemon.submit({ payload: 'x', requires: ['quantum'], tenant: 'bounded' })).id;
    const counted = await submit();
    await enter(page, world, 'root', '#/jobs?tenant=bounded');
    const trial = page.waitForResponse('**/v1/bulk');
    await page.getByRole('button', { name: 'Cancel all' }).click();
    const { before } = await (await trial).json();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toContainText('1 job matches now');
    await expect(dialog).toContainText('Jobs that are submitted from now on are left out.');
    const later = await submit();
    await dialog.getByLabel(/^Type/).fill('1');
    const begun = page.waitForRequest('**/v1/bulk');
    await dialog.getByRole('button', { name: 'Cancel 1 job' }).click();
    expect((await begun).postDataJSON().before).toBe(before);
    await expect(page.locator('main .bar')).toContainText('DONE');
    await daemon.reaches(counted, 'FINISHED');
    expect((await daemon.ask('GET', `/v1/jobs/${later}`)).state).toBe('CREATED');
    await daemon.ask('POST', `/v1/jobs/${later}/cancel`);
});

test('a bulk dialog says that more jobs may match than are counted', async ({ page, world }) => {
    await enter(page, world, 'root', '#/jobs?outcome=succeeded');
    let matched = 0;
    await page.route('**/v1/bulk', (route) => route.fulfill({ json: { matched, at_least: true, before: '2026-01-31T08:00:00Z' } }));
    const dialog = page.getByRole('dialog');
    // The count ends also when its time is over, whatever it has found by then.
    for (const [number, shown] of [[1_000_000, '1,000,000'], [4_711, '4,711'], [0, '0']] as const) {
        matched = number;
        await page.getByRole('button', { name: 'Delete all' }).click();
        await expect(dialog).toContainText(`at least ${shown} jobs match now`);
        await dialog.getByLabel(/^Type/).fill(String(number));
        await expect(dialog.getByRole('button', { name: `Delete at least ${shown} jobs` })).toBeEnabled();
        await page.keyboard.press('Escape');
        await expect(dialog).toBeHidden();
    }
});

test('where no job matches there is nothing to confirm', async ({ page, world }) => {
    await enter(page, world, 'root', '#/jobs?tenant=nobody');
    await page.getByRole('button', { name: 'Delete all' }).click();
    const dialog = page.getByRole('dialog');
    await expect(dialog).toContainText('0 jobs match now');
    await expect(dialog.getByRole('button', { name: 'Delete 0 jobs' })).toBeDisabled();
    await page.keyboard.press('Escape');
    await expect(dialog).toBeHidden();
});

test('where the jobs cannot be counted nothing can be confirmed', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'root', '#/jobs');
    const begin = page.locator('main').getByRole('button', { name: 'Delete all' });
    const dialog = page.getByRole('dialog');
    for (const query of ['kind=a%20b', 'dead=1']) {
        await expect(begin).toHaveCount(0);
        await visit(page, `#/jobs?${query}`);
        await begin.click();
        await expect(dialog.getByRole('alert'), query).toContainText('invalid');
        await expect(dialog, query).not.toContainText('Counting');
        await expect(dialog.getByRole('button', { name: 'Delete all' }), query).toBeDisabled();
        await page.keyboard.press('Escape');
        await visit(page, '#/jobs');
    }
});

test('the jobs are counted again where that failed, and their number may be typed as it is written', async ({ page, world, watch }) => {
    watch.allowsFailures = true;
    await enter(page, world, 'root', '#/jobs?outcome=succeeded');
    // One route for both: between the end of one and the begin of another a request gets through.
    const counted = { matched: 1_500, at_least: false, before: '2026-01-31T08:00:00Z' };
    let fails = true;
    await page.route('**/v1/bulk', (route) => (fails ? route.abort() : route.fulfill({ json: counted })));
    await page.getByRole('button', { name: 'Delete all' }).click();
    const dialog = page.getByRole('dialog');
    await expect(dialog.getByRole('alert')).toContainText('unreachable');
    fails = false;
    await dialog.getByRole('button', { name: 'Try again' }).click();
    const confirm = dialog.getByRole('button', { name: 'Delete 1,500 jobs' });
    await expect(dialog.getByRole('alert')).toHaveCount(0);
    for (const [text, isRight] of [['1500', true], ['150', false], ['1,500', true], ['15,00', false], [' 1500 ', true], ['1,500 jobs', false]] as const) {
        await dialog.getByLabel(/^Type/).fill(text);
        await expect(confirm, text).toBeEnabled({ enabled: isRight });
    }
    await page.keyboard.press('Escape');
    await page.unrouteAll({ behavior: 'ignoreErrors' });
});
