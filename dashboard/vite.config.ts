// The build: three files with fixed names, each beside its compressed form. The same sources give the same bytes.

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'fflate';
import { defineConfig, type Plugin } from 'vite';

/** Writes `FILE.gz` beside each file. The compressor is part of the build, since zlib's output differs by platform. */
function compressed(): Plugin {
    return {
        name: 'compressed',
        apply: 'build',
        writeBundle({ dir }) {
            for (const name of readdirSync(dir!)) {
                if (!name.endsWith('.gz')) {
                    const bytes = readFileSync(join(dir!, name));
                    writeFileSync(join(dir!, `${name}.gz`), gzipSync(bytes, { level: 9, mtime: 0 }));
                }
            }
        },
    };
}

/** The version of the workspace, which is that of the daemon. */
const version = /^version = "(.+)"$/m.exec(readFileSync('../Cargo.toml', 'utf8'))![1];

/** The daemon serves everything but the page below `/assets/`; `dist` is flat. */
const daemon = process.env.FENCEPOST_URL ?? 'http://127.0.0.1:7070';

export default defineConfig({
    base: '/assets/',
    publicDir: 'public',
    define: { OWN_VERSION: JSON.stringify(version) },
    esbuild: { jsx: 'automatic', jsxImportSource: 'preact', legalComments: 'none' },
    build: {
        target: 'es2022',
        outDir: process.env.DASHBOARD_OUT ?? 'dist',
        emptyOutDir: true,
        assetsDir: '.',
        assetsInlineLimit: 0,
        modulePreload: false,
        rollupOptions: {
            output: {
                entryFileNames: 'app.js',
                assetFileNames: (asset) => (asset.names.some((name) => name.endsWith('.css')) ? 'app.css' : '[name][extname]'),
                inlineDynamicImports: true,
            },
        },
    },
    server: { proxy: { '/v1': daemon, '/readyz': daemon, '/openapi.json': daemon } },
    plugins: [compressed()],
});
