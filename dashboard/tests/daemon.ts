// The real binary in a folder of its own, and worker nodes beside it: one instance on SQLite, or three on a PostgreSQL and a
// Redis that all tests share (`with-servers` starts them), with a database for each.

import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const BINARY = resolve(process.env.FENCEPOST_BINARY ?? '../target/debug/fencepost');
/** How long something may take that must happen. */
const PATIENCE_MS = 120_000;
/** Instances beside the one that the page is of. */
const PEERS = 2;

/** The tokens of the tests: a name each, which is also the secret. */
export const TOKENS = { root: 'admin', viewer: 'read', maker: 'submit', worker: 'node' } as const;
export type TokenName = keyof typeof TOKENS;

/** What a node does with a payload. A payload with "fail" fails for good, one with "slow" takes long, one with "pause" a second. */
const WORK =
    'input=$(cat); case "$input" in *fail*) echo "<b id=evil>broken</b>" >&2; exit 65;; *slow*) sleep 900;; *pause*) sleep 1;; esac; printf %s "$input"';

// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Answer = any;

export class Daemon {
    private constructor(
        private readonly dir: string,
        private child: ChildProcess,
        readonly url: string,
        private readonly hasTokens: boolean,
        private readonly servers: NodeJS.ProcessEnv,
        private readonly peers: Launched[],
        private readonly nodes: ChildProcess[] = [],
    ) {}

    /** One instance, or the first of a cluster. */
    static async start(hasTokens = true, isCluster = false): Promise<Daemon> {
        const dir = mkdtempSync(join(tmpdir(), 'fencepost-dashboard-'));
        const servers = isCluster ? freshServers() : {};
        const { child, url } = await launch(join(dir, '0'), '127.0.0.1:0', hasTokens, servers);
        const peers = [];
        for (let at = 1; isCluster && at <= PEERS; at += 1) peers.push(await launch(join(dir, String(at)), '127.0.0.1:0', hasTokens, servers));
        const daemon = new Daemon(dir, child, url, hasTokens, servers, peers);
        await until('every instance knows the others', async () => (await daemon.ask('GET', '/v1/cluster')).instances.length === 1 + peers.length);
        return daemon;
    }

    /** Kills the daemon as a crash does. */
    async kill(): Promise<void> {
        const over = ended(this.child);
        this.child.kill('SIGKILL');
        await over;
    }

    /** Starts it again at the same address. */
    async revive(): Promise<void> {
        ({ child: this.child } = await launch(join(this.dir, '0'), new URL(this.url).host, this.hasTokens, this.servers));
    }

    async stop(): Promise<void> {
        const peers = this.peers.map(({ child }) => child);
        const all = [this.child, ...peers, ...this.nodes].filter((child) => child.exitCode === null && child.signalCode === null);
        const over = all.map(ended);
        for (const child of all) child.kill('SIGKILL');
        await Promise.all(over);
        rmSync(this.dir, { recursive: true, force: true });
    }

    /** Starts a worker node, on the instances in turn, and waits until the daemon lists it. */
    async node(id: string, ...options: string[]): Promise<void> {
        const urls = [...this.peers.map(({ url }) => url), this.url];
        const url = urls[this.nodes.length % urls.length]!;
        const child = spawn(BINARY, ['node', '-q', '--url', url, '--node-id', id, ...options, '--exec', 'sh', '-c', WORK], {
            stdio: ['ignore', 'ignore', 'inherit'],
            env: { ...process.env, ...(this.hasTokens ? { FENCEPOST_TOKEN: 'worker' } : {}) },
        });
        this.nodes.push(child);
        await until(`the node ${id} is online`, async () => (await this.status('GET', `/v1/nodes/${id}`)) === 200);
    }

    async ask(method: string, path: string, body?: unknown, more: Record<string, string> = {}): Promise<Answer> {
        const response = await this.fetch(method, path, body, more);
        const text = await response.text();
        if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
        return text === '' ? undefined : JSON.parse(text);
    }

    async status(method: string, path: string, body?: unknown): Promise<number> {
        return (await this.fetch(method, path, body)).status;
    }

    /** Sends the request again where the daemon asks for that: on a busy machine an instance may lose its lease. */
    private async fetch(method: string, path: string, body: unknown, more: Record<string, string> = {}): Promise<Response> {
        const headers: Record<string, string> = { connection: 'close', ...more };
        if (this.hasTokens) headers.authorization = 'Bearer root';
        if (body !== undefined) headers['content-type'] = 'application/json';
        if (method === 'POST') headers['idempotency-key'] = randomUUID();
        const giveUp = Date.now() + PATIENCE_MS;
        for (;;) {
            const response = await fetch(this.url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
            const seconds = response.headers.get('retry-after');
            if (seconds === null || Date.now() > giveUp) return response;
            await new Promise((resolve) => setTimeout(resolve, 1_000 * Number(seconds)));
        }
    }

    submit(job: Record<string, unknown>): Promise<{ id: string }> {
        return this.ask('POST', '/v1/jobs', job);
    }

    /** Waits until a job is in a state. */
    async reaches(id: string, state: string): Promise<Answer> {
        let job: Answer;
        await until(`the job ${id} is ${state}`, async () => {
            job = await this.ask('GET', `/v1/jobs/${id}`);
            return job.state === state;
        });
        return job;
    }

    /** Waits until a bulk operation is over in this way. */
    bulkEnds(id: string, status: string): Promise<void> {
        return until(`the bulk operation ${id} is ${status}`, async () => (await this.ask('GET', `/v1/bulk/${id}`)).status === status);
    }

    async audited(action: string, subject: string): Promise<number> {
        const query = new URLSearchParams({ action, subject });
        return (await this.ask('GET', `/v1/audit?${query}`)).items.length;
    }
}

type Launched = { child: ChildProcess; url: string };

/** A database of its own; Redis is shared, since the ledger's id is in its keys. */
function freshServers(): NodeJS.ProcessEnv {
    const postgres = new URL(required('FENCEPOST_TEST_POSTGRES_URL'));
    const database = `dashboard_${randomUUID().replaceAll('-', '')}`;
    execFileSync('psql', ['-q', '-d', postgres.href, '-c', `create database ${database}`]);
    postgres.pathname = `/${database}`;
    return { FENCEPOST_DATABASE_URL: postgres.href, FENCEPOST_REDIS_URL: required('FENCEPOST_TEST_REDIS_URL') };
}

function required(name: string): string {
    const value = process.env[name];
    if (value === undefined) throw new Error(`${name} is not set: run the tests with dashboard/test`);
    return value;
}

async function launch(dir: string, listen: string, hasTokens: boolean, servers: NodeJS.ProcessEnv): Promise<Launched> {
    mkdirSync(dir, { recursive: true });
    const tokens = Object.entries(TOKENS).map(([name, scope]) => ({ name, token: name, scopes: [scope] }));
    const env: NodeJS.ProcessEnv = { PATH: process.env.PATH, HOME: dir, ...servers };
    if (hasTokens) env.FENCEPOST__AUTH__TOKENS = JSON.stringify(tokens);
    const child = spawn(BINARY, ['serve', '--listen', listen, '--node-name', 'test'], { cwd: dir, env, stdio: ['ignore', 'pipe', 'pipe'] });
    let log = '';
    child.stderr!.on('data', (bytes: Buffer) => void (log = (log + bytes.toString()).slice(-4_000)));
    const url = await new Promise<string>((found, failed) => {
        let out = '';
        const late = setTimeout(() => failed(new Error(`the daemon is not ready: ${log}`)), PATIENCE_MS);
        child.stdout!.on('data', (bytes: Buffer) => {
            out += bytes.toString();
            const match = /ready on (\S+)/.exec(out);
            if (match) {
                clearTimeout(late);
                found(match[1]!);
            }
        });
        child.once('exit', (code) => {
            clearTimeout(late);
            failed(new Error(`the daemon ended with ${code}: ${log}`));
        });
    });
    return { child, url };
}

function ended(child: ChildProcess): Promise<void> {
    return new Promise((resolve) => child.once('exit', () => resolve()));
}

/** Asks again and again until it is so. */
export async function until(what: string, is: () => Promise<boolean>): Promise<void> {
    const giveUp = Date.now() + PATIENCE_MS;
    while (!(await is())) {
        if (Date.now() > giveUp) throw new Error(`it never happened: ${what}`);
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
}
