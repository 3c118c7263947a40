// The dashboard's tests: Debian's Chromium against the real binary. Each worker has a daemon on SQLite, and then, for all but the
// tests of tokens, three instances on PostgreSQL and Redis.

import { defineConfig } from '@playwright/test';

const isRoot = process.getuid?.() === 0;
const isLarge = process.env.FENCEPOST_URLS !== undefined;

export default defineConfig({
    testDir: 'tests',
    outputDir: '../target/dashboard',
    workers: isLarge ? 1 : 2,
    // A browser on a busy machine sometimes paints nothing for seconds. What fails twice is wrong; the list names both.
    retries: isLarge ? 0 : 1,
    // The pictures are for the documents; `npm run pictures` makes them. `./test --large` looks at a large cluster.
    projects: isLarge
        ? [{ name: 'large', testMatch: 'large.spec.ts' }]
        : [
              { name: 'sqlite', testIgnore: ['large.spec.ts', ...(process.env.PICTURES ? [] : ['pictures.spec.ts'])] },
              { name: 'cluster', testMatch: ['pages.spec.ts', 'lists.spec.ts', 'actions.spec.ts', 'bulk.spec.ts', 'live.spec.ts'] },
          ],
    forbidOnly: true,
    reporter: 'list',
    // How long a test that fails takes, and no other: each waits for what it needs, however slow the machine is.
    timeout: 300_000,
    expect: { timeout: 60_000 },
    use: {
        viewport: { width: 1280, height: 900 },
        navigationTimeout: 120_000,
        launchOptions: {
            executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium-headless-shell',
            args: isRoot ? ['--no-sandbox'] : [],
        },
    },
});
