// Jobs that do nothing through BullMQ: how many a second from the first one added to the last one completed, results
// kept. Prints one line of JSON.
//
// node bench.mjs PORT JOBS BULK IN_FLIGHT CONCURRENCY PACKAGE [apart]
//
// PACKAGE is `bullmq5` or `bullmq6`, see package.json.
// BULK is 1 for `add`, more for `addBulk` of so many. `apart` runs the worker in a process of its own.

import { fork } from 'node:child_process'

const NAME = 'beside'
const WARM_UP_JOBS = 2000

const [port, jobs, bulk, inFlight, concurrency] = process.argv.slice(2, 7).map(Number)
const { Queue, Worker } = await import(process.argv[7])
const isApart = process.argv.includes('apart')
const connection = { host: '127.0.0.1', port }

// Calls back when so many more jobs are completed.
function work(onDone) {
  let left = 0
  const worker = new Worker(NAME, async () => null, { connection, concurrency })
  worker.on('completed', () => {
    if (--left === 0) onDone()
  })
  worker.on('error', (error) => {
    console.error(error)
    process.exit(1)
  })
  return { expect: (count) => { left += count }, close: () => worker.close() }
}

if (process.argv.includes('child')) {
  const worker = work(() => process.send('done'))
  process.on('message', async (count) => {
    if (count === 0) {
      await worker.close()
      process.disconnect()
    } else {
      worker.expect(count)
      process.send('ready')
    }
  })
} else {
  await main()
}

async function main() {
  const queue = new Queue(NAME, { connection })
  await queue.waitUntilReady()
  const worker = isApart ? another() : here()
  const measure = async (count) => {
    const { done } = await worker.expect(count)
    const began = performance.now()
    await add(queue, count)
    const added = performance.now()
    await done
    return { added_s: (added - began) / 1000, seconds: (performance.now() - began) / 1000 }
  }
  await measure(WARM_UP_JOBS)
  const { added_s, seconds } = await measure(jobs)
  const { completed } = await queue.getJobCounts('completed')
  console.log(JSON.stringify({ jobs, seconds, added_s, per_second: jobs / seconds, completed: completed - WARM_UP_JOBS }))
  await worker.close()
  await queue.close()
}

// So many requests at once, each sent when one is answered.
async function add(queue, count) {
  let next = 0
  const one = async () => {
    while (next < count) {
      const first = next
      next += bulk
      if (bulk === 1) {
        await queue.add('job', { n: first })
      } else {
        const size = Math.min(bulk, count - first)
        await queue.addBulk(Array.from({ length: size }, (_, at) => ({ name: 'job', data: { n: first + at } })))
      }
    }
  }
  await Promise.all(Array.from({ length: inFlight }, one))
}

// Each `expect` answers a promise of the moment when all are completed.
function here() {
  let tell
  const worker = work(() => tell())
  return {
    expect: async (count) => {
      const done = new Promise((resolve) => { tell = resolve })
      worker.expect(count)
      return { done }
    },
    close: worker.close,
  }
}

function another() {
  const child = fork(process.argv[1], [...process.argv.slice(2), 'child'])
  let tell, ready
  child.on('message', (word) => (word === 'done' ? tell() : ready()))
  return {
    expect: async (count) => {
      const done = new Promise((resolve) => { tell = resolve })
      const isReady = new Promise((resolve) => { ready = resolve })
      child.send(count)
      await isReady
      return { done }
    },
    close: async () => {
      const gone = new Promise((resolve) => child.on('exit', resolve))
      child.send(0)
      await gone
    },
  }
}
