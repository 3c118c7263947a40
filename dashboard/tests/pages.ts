// The pages of the dashboard with the data of `world`.

import { EVIL, type World } from './world';

/** Each page, and texts that it shows. */
export function pages(world: World): [name: string, address: string, texts: string[]][] {
    const { signer } = world;
    return [
        ['overview', '#/', ['Oldest waiting job', 'zh-en', 'batch', 'this one', 'ledger', 'accepted']],
        ['jobs', '#/jobs', [world.succeeded, world.failed, world.waiting, 'RUNNING', 'failed', 'dead']],
        ['jobs by filter', '#/jobs?dead=true', [world.failed]],
        ['job', `#/jobs/${world.succeeded}`, [EVIL, 'alpha-1', 'Timeline', 'dispatched', 'acme', 'metadata note']],
        ['job that failed', `#/jobs/${world.failed}`, ['<b id=evil>broken</b>', 'failed']],
        ['job that waits', `#/jobs/${world.waiting}`, ['Why it waits', 'lack a label']],
        ['job that is delayed', `#/jobs/${world.delayed}`, ['is not due before']],
        ['sessions', '#/sessions', ['Session id']],
        ['session', `#/sessions/${world.session}`, ['strict', 'acme', 'zh-en', 'Jobs of the session']],
        ['nodes', '#/nodes', ['alpha-1', 'beta-1', 'online', 'asr:zh', 'zh:en', 'Which node would a job get?']],
        ['node', '#/nodes/alpha-1', ['gpu', 'of 4']],
        ['signers', '#/signers', [signer, 'on expiry']],
        ['signer', `#/signers/${signer}`, ['QUARANTINED', 'Next nonce', 'Holes', 'on expiry']],
        ['holes', `#/signers/${signer}?status=RELEASED`, ['RELEASED']],
        ['ids', '#/ids', ['order', EVIL, 'Snowflake']],
        ['plans', '#/plans', [`roll out ${EVIL}`, 'upgrade', 'ATTENTION']],
        ['plan', `#/plans/${world.plan}`, ['globex', 'initech', 'created', 'Pause plan']],
        ['plan that failed', `#/plans/${world.failedPlan}`, ['Needs a person', 'umbrella']],
        ['task', `#/tasks/${world.task}`, ['prepare', 'migrate', 'SUCCEEDED', '"region": "eu"', 'Checkpoints']],
        ['task that failed', `#/tasks/${world.failedTask}`, ['FAILED', 'Try without effect']],
        ['tenant', '#/tenants/globex', ['token', 'Break lock', 'globex eu']],
        ['cluster', '#/cluster', ['worker-queue', 'Leases', `signer:${signer}`]],
        ['lease', `#/leases/${encodeURIComponent(`signer:${signer}`)}`, ['fencing token', 'address']],
        ['audit', '#/audit', ['set_pools', 'config:pools', 'root']],
        ['no page', '#/nowhere', ['No such page']],
    ];
}
