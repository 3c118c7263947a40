// What a dialog says before somebody confirms: what it is about, how many, and that a screen reader reads it out.

import { enter, expect, test, visit } from './world';

test('a dialog names what it acts on and how many, and is described by that', async ({ page, world: { daemon }, world }) => {
    const { id: job } = await daemon.submit({ payload: 'x', requires: ['quantum'] });
    const { id: session } = await daemon.ask('POST', '/v1/sessions', {});
    for (const payload of ['one', 'two']) await daemon.submit({ payload, session, requires: ['quantum'] });
    const { lock } = await daemon.ask('GET', '/v1/tenants/umbrella');
    expect(lock).not.toBeNull();
    await enter(page, world, 'root');
    const dialog = page.getByRole('dialog');
    for (const [address, button, says] of [
        [`#/jobs/${job}`, 'Cancel job', `The job ${job} ends as cancelled.`],
        [`#/jobs/${world.failed}`, 'Retry job', `the same payload as ${world.failed} is submitted`],
        [`#/jobs/${world.failed}`, 'Dismiss job', `The job ${world.failed} need not be retried`],
        [`#/jobs/${world.failed}`, 'Delete job', `The job ${world.failed} is forgotten at once`],
        [`#/sessions/${session}`, 'Close session', `The session ${session} takes no new jobs. 2 jobs that it has accepted go on to the end.`],
        [`#/plans/${world.failedPlan}`, 'Cancel plan', 'Of the plan upgrade, 1 task that has not succeeded is cancelled. None of them runs.'],
        [`#/plans/${world.plan}`, 'Cancel plan', '2 tasks that have not succeeded are cancelled. The stage of the one that runs is told to stop.'],
        [`#/tasks/${world.failedTask}`, 'Cancel task', 'The task of the tenant umbrella is cancelled'],
        ['#/tenants/umbrella', 'Break lock', 'The task that holds the lock of umbrella loses it'],
        ['#/jobs?dead=true', 'Delete all', / match(es)? now: dead true/],
    ] as const) {
        await visit(page, address);
        await page.locator('main').getByRole('button', { name: button, exact: true }).click();
        await expect(dialog).toHaveAccessibleName(button);
        await expect(dialog).toHaveAccessibleDescription(typeof says === 'string' ? new RegExp(says.replaceAll('.', '\\.')) : says);
        await dialog.getByRole('button', { name: 'Back' }).click();
        await expect(dialog).toBeHidden();
    }
    await daemon.ask('POST', `/v1/jobs/${job}/cancel`);
    await daemon.ask('POST', '/v1/bulk', { action: 'cancel', filter: { session } });
});
