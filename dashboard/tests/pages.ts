// The pages of the dashboard with the data of `world`.

import { EVIL, KIND, TRACEPARENT, type World } from './world';

/** Each page, and texts that it shows. */
export function pages(world: World): [name: string, address: string, texts: string[]][] {
    const { signer } = world;
    return [
        ['overview', '#/', ['Oldest waiting job', 'zh-en', 'batch', 'this one', 'ledger', 'accepted', 'Slots in use', 'of 12', 'Failed, last 15 min', 'dead jobs', `spare is paused: repair ${EVIL}`]],
        ['jobs', '#/jobs', [world.succeeded, world.failed, world.waiting, 'RUNNING', 'failed', 'dead', KIND, 'Bulk operations']],
        ['jobs by filter', '#/jobs?dead=true', [world.failed, '<b id=evil>broken</b>', 'Retry all', 'Dismiss all', 'Delete all']],
        ['jobs by kind', `#/jobs?kind=${KIND}`, [world.succeeded]],
        ['job', `#/jobs/${world.succeeded}`, [EVIL, 'alpha-1', 'Timeline', 'dispatched', 'acme', 'metadata note', KIND, 'traceparent', TRACEPARENT]],
        ['job that failed', `#/jobs/${world.failed}`, ['<b id=evil>broken</b>', 'failed', 'Retry job', 'Dismiss job', 'Delete job']],
        ['job that waits', `#/jobs/${world.waiting}`, ['Why it waits', 'no node in its pools has all of: quantum', 'which one a job like this would get']],
        ['job that is delayed', `#/jobs/${world.delayed}`, ['not due', 'the job is due later, until']],
        ['job of a paused pool', `#/jobs/${world.paused}`, ['pool paused', `the pool spare is paused: repair ${EVIL}`, 'Pools are resumed']],
        ['bulk operations', '#/bulk', ['Bulk operations', 'cancel', 'DONE', 'tenant wayne', '1 of 1']],
        ['bulk operation', `#/bulk/${world.bulk}`, ['tenant wayne', 'submitted before', '200 jobs per second', 'matched', 'DONE']],
        ['sessions', '#/sessions?state=open', ['Session id', 'strict', 'open']],
        ['session', `#/sessions/${world.session}`, ['strict', 'acme', 'zh-en', 'Jobs of the session']],
        ['nodes', '#/nodes', ['alpha-1', 'beta-1', 'online', 'asr:zh', 'zh:en', 'Which node would a job get?', 'heartbeat', 'oldest', `spare is paused: repair ${EVIL}`, 'by root', 'Resume', 'Change pause', 'no pool named']],
        ['nodes explained', '#/nodes?requires=quantum', ['None of the 2 nodes', '2 lack a label']],
        ['node', '#/nodes/alpha-1', ['gpu', 'of 4', 'held by', 'heartbeat', 'registered', 'services', 'record']],
        ['signers', '#/signers', [signer, 'on expiry', 'holes', 'Holes are the released nonces']],
        ['signer', `#/signers/${signer}`, ['QUARANTINED', 'Next nonce', 'Holes', 'on expiry']],
        ['holes', `#/signers/${signer}?status=RELEASED`, ['RELEASED']],
        ['ids', '#/ids', ['order', EVIL, 'Snowflake', 'lists the sequences']],
        ['plans', '#/plans', [`roll out ${EVIL}`, 'upgrade', 'ATTENTION']],
        ['plan', `#/plans/${world.plan}`, ['globex', 'initech', 'created', 'globex / globex eu', 'the plan', 'Pause plan']],
        ['plan that failed', `#/plans/${world.failedPlan}`, ['Needs a person', 'umbrella']],
        ['task', `#/tasks/${world.task}`, ['prepare', 'migrate', 'SUCCEEDED', '"region": "eu"', 'Checkpoints']],
        ['task that failed', `#/tasks/${world.failedTask}`, ['FAILED', 'Try without effect']],
        ['tenant', '#/tenants/globex', ['token', 'Break lock', 'globex eu']],
        ['cluster', '#/cluster', ['worker-queue', 'Leases', `signer:${signer}`]],
        ['lease', `#/leases/${encodeURIComponent(`signer:${signer}`)}`, ['fencing token', 'address']],
        // Other tests of the same daemon may have filled the first page of the whole audit.
        ['audit', '#/audit', ['Subject', 'root']],
        ['audit of the pools', '#/audit?subject=config:pools', ['set_pools', 'config:pools', 'root']],
        ['audit of a pause', '#/audit?subject=pool:spare', ['pause_pool', 'pool:spare', 'root']],
        ['audit of a bulk operation', `#/audit?subject=bulk:${world.bulk}`, ['bulk_cancel', `bulk:${world.bulk}`]],
        ['no page', '#/nowhere', ['No such page']],
    ];
}
