// A daemon with something of everything, and a page that notices what must never happen.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test as base, expect, type Page } from '@playwright/test';
import { Daemon, until, type TokenName } from './daemon';

export const EVIL = '<img src=x onerror="window.evil=1"><script>window.evil=1</script>';

export const KIND = 'send_email';
export const TRACEPARENT = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';

export type World = {
    daemon: Daemon;
    succeeded: string;
    failed: string;
    running: string;
    waiting: string;
    delayed: string;
    paused: string;
    bulk: string;
    session: string;
    signer: string;
    plan: string;
    task: string;
    failedPlan: string;
    failedTask: string;
};

export async function furnish(daemon: Daemon): Promise<World> {
    const { version } = await daemon.ask('GET', '/v1/config/pools');
    await daemon.ask('PUT', '/v1/config/pools', {
        version,
        pools: [
            { name: 'zh-en', routes: ['zh:en'], requires: ['asr:zh'], weight: 2 },
            { name: 'batch', requires: ['batch'] },
            { name: 'spare', requires: ['batch'] },
            { name: 'idle', requires: ['batch'] },
        ],
    });
    await daemon.ask('POST', '/v1/pools/spare/pause', { reason: `repair ${EVIL}` });
    await daemon.node('alpha-1', '--capacity', '4', '--label', 'gpu', '--asr', 'zh', '--tts', 'en', '--label', 'batch');
    await daemon.node('beta-1', '--capacity', '8', '--label', 'batch', '--label', 'deploy');
    const job = { payload: { text: EVIL, big: 1, list: [1, 2, 3] }, kind: KIND, pool: 'zh-en', tenant: 'acme', metadata: { note: EVIL } };
    const { id: succeeded } = await daemon.ask('POST', '/v1/jobs', job, { traceparent: TRACEPARENT });
    const { id: failed } = await daemon.submit({ payload: 'fail', pool: 'batch', tenant: 'acme', max_attempts: 1 });
    const { id: running } = await daemon.submit({ payload: { slow: true }, pool: 'batch' });
    const { id: waiting } = await daemon.submit({ payload: 'nobody can', requires: ['quantum'] });
    const { id: delayed } = await daemon.submit({ payload: 'later', delay_ms: 3_600_000 });
    const { id: paused } = await daemon.submit({ payload: 'when it is mended', pool: 'spare' });
    await daemon.submit({ payload: 'nobody can', requires: ['quantum'], tenant: 'wayne' });
    const { id: bulk } = await daemon.ask('POST', '/v1/bulk', { action: 'cancel', filter: { tenant: 'wayne' } });
    const { id: session } = await daemon.ask('POST', '/v1/sessions', { pool: 'zh-en', tenant: 'acme' });
    for (const word of ['one', 'two', 'three']) await daemon.submit({ payload: word, session });

    const signer = 'eip155:1:0xab';
    const { grants } = await daemon.ask('POST', `/v1/signers/${signer}/nonces`, { count: 6 });
    const outcomes = ['consumed', 'unknown', 'never_sent', 'unknown'];
    const settlements = outcomes.map((outcome, at) => ({ nonce: grants[at].nonce, hold: grants[at].hold, outcome }));
    await daemon.ask('POST', `/v1/signers/${signer}/settlements`, { settlements });
    await daemon.ask('PUT', '/v1/ids/segments/order', { step: 1000, description: EVIL });
    await daemon.ask('GET', '/v1/ids/segments/order?count=5');

    // A slow stage runs for as long as the tests do.
    const stage = (name: string, payload: unknown) => ({ name, payload, requires: ['deploy'], timeout_ms: 900_000 });
    const timeout_ms = 900_000;
    const { id: plan } = await daemon.ask('POST', '/v1/plans', {
        name: `roll out ${EVIL}`,
        tasks: [
            { tenant: 'globex', name: 'globex eu', timeout_ms, config: { region: 'eu' }, stages: [stage('prepare', { context: { step: 1 } }), stage('migrate', 'slow')] },
            { tenant: 'initech', stages: [stage('prepare', 'ok')] },
        ],
        max_concurrency: 1,
        start: true,
    });
    const { id: failedPlan } = await daemon.ask('POST', '/v1/plans', {
        name: 'upgrade',
        tasks: [{ tenant: 'umbrella', stages: [stage('prepare', { context: { step: 1 } }), stage('migrate', 'fail')] }],
        start: true,
    });
    const first = async (of: string) => (await daemon.ask('GET', `/v1/plans/${of}/tasks`)).items[0];
    await until('the plan fails', async () => (await first(failedPlan)).status === 'FAILED');
    await until('the plan has a checkpoint', async () => (await first(plan)).has_checkpoint);
    await daemon.reaches(succeeded, 'FINISHED');
    await daemon.reaches(failed, 'FINISHED');
    await daemon.reaches(running, 'RUNNING');
    await daemon.bulkEnds(bulk, 'DONE');
    const task = (await first(plan)).id;
    const failedTask = (await first(failedPlan)).id;
    return { daemon, succeeded, failed, running, waiting, delayed, paused, bulk, session, signer, plan, task, failedPlan, failedTask };
}

/** What a page did that it must not. */
export class Watch {
    readonly wrong: string[] = [];
    /** While the daemon is away, or refuses on purpose, the browser itself reports failed requests. */
    allowsFailures = false;

    constructor(
        page: Page,
        public origin: string,
    ) {
        page.on('request', (request) => {
            const url = request.url();
            if (!url.startsWith(`${this.origin}/`) && !url.startsWith('data:')) this.wrong.push(`a request to ${url}`);
            if (/root|viewer|maker|Bearer/.test(new URL(url).search)) this.wrong.push(`a token in ${url}`);
        });
        page.on('pageerror', (error) => this.wrong.push(`an error: ${error}`));
        page.on('dialog', (dialog) => this.wrong.push(`a dialog: ${dialog.message()}`));
        page.on('console', (message) => {
            const isFailure = message.text().startsWith('Failed to load resource');
            // On a busy machine an instance may lose its lease, and says so.
            const isForNow = isFailure && message.text().includes('status of 503');
            if (message.type() === 'error' && !(isFailure && this.allowsFailures) && !isForNow) this.wrong.push(`console: ${message.text()}`);
        });
    }

    async expectNothing(page: Page): Promise<void> {
        const violations = await page.evaluate(() => (window as unknown as { violations: string[] }).violations);
        const evil = await page.evaluate(() => (window as unknown as { evil?: number }).evil);
        expect([...this.wrong, ...violations]).toEqual([]);
        expect(evil, 'text from data ran as a script').toBeUndefined();
        expect(await page.locator('main img, main script, #evil').count(), 'text from data became elements').toBe(0);
    }
}

export const test = base.extend<{ watch: Watch }, { world: World }>({
    world: [
        async ({}, use, { project }) => {
            const daemon = await Daemon.start(true, project.name === 'cluster');
            try {
                await use(await furnish(daemon));
            } finally {
                await daemon.stop();
            }
        },
        // As long as a test may take, and not a part of the first one's time.
        { scope: 'worker', timeout: 300_000 },
    ],
    watch: [
        async ({ page, world }, use) => {
            const watch = new Watch(page, world.daemon.url);
            if (process.env.DASHBOARD_DIST) await serveFrom(process.env.DASHBOARD_DIST, page);
            await page.addInitScript(() => {
                const seen: string[] = [];
                Object.assign(window, { violations: seen });
                // A slow machine is no daemon that is away: the page waits for an answer for as long as the test does.
                AbortSignal.timeout = () => new AbortController().signal;
                document.addEventListener('securitypolicyviolation', (event) => seen.push(`${event.violatedDirective} ${event.blockedURI}`));
            });
            await use(watch);
            await watch.expectNothing(page);
        },
        { auto: true },
    ],
});

/** While one works on the page: the files of a folder in place of those in the binary, with the daemon's headers. */
async function serveFrom(dir: string, page: Page): Promise<void> {
    await page.route(/^[^?#]*:\d+\/(assets\/[^/]*)?$/, async (route) => {
        const name = new URL(route.request().url()).pathname.replace(/^\/(assets\/)?/, '') || 'index.html';
        const response = await route.fetch();
        await route.fulfill({ response, body: readFileSync(join(dir, name)) });
    });
}

/** Opens the dashboard with a token, at a page. */
export async function enter(page: Page, world: World, token: TokenName, address = '#/'): Promise<void> {
    await page.addInitScript((secret) => {
        // Once: a token that the page forgets stays forgotten.
        if (sessionStorage.getItem('test.entered') === null) sessionStorage.setItem('fencepost.token', secret);
        sessionStorage.setItem('test.entered', 'yes');
    }, token);
    await page.goto(`${world.daemon.url}/${address}`);
    await expect(page.locator('main h1').first()).toBeVisible();
}

/** Goes to another page of the dashboard. */
export async function visit(page: Page, address: string): Promise<void> {
    await page.evaluate((hash) => void (location.hash = hash), address);
}

export { expect };
