// @platformatic/kafka. Given offsets are read by a member of a group as well: a consumer always has one.
import { randomUUID } from 'node:crypto'
import { Consumer, Producer } from '@platformatic/kafka'
import { complain, HEARTBEAT_MS, LAST_COMMITS_MS, pause, run, SESSION_TIMEOUT_MS, stdinEnds, tell, tellCommitted, tellRecord, tellWrite } from './lines.mjs'

const consumerOf = (bootstrapBrokers, groupId) => new Consumer({
  groupId,
  clientId: 'platformatic',
  bootstrapBrokers,
  sessionTimeout: SESSION_TIMEOUT_MS,
  rebalanceTimeout: SESSION_TIMEOUT_MS,
  heartbeatInterval: HEARTBEAT_MS,
  maxWaitTime: 500,
  autocommit: false
})

async function assign (bootstrap, topic, partitions, count) {
  const consumer = consumerOf(bootstrap, `offsets-${randomUUID()}`)
  const offsets = Array.from({ length: Number(partitions) }, (_, partition) => ({ topic, partition, offset: 0n }))
  const stream = await consumer.consume({ topics: [topic], mode: 'manual', offsets })
  let left = Number(count)
  for await (const { partition, offset, key, value } of stream) {
    tellRecord(partition, offset, key, value)
    if (--left === 0) break
  }
  await consumer.close(true)
}

async function group (bootstrap, topic, groupId, count) {
  const consumer = consumerOf(bootstrap, groupId)
  let left = Number(count) || Infinity
  let isEnding = false
  const behind = new Map() // written out and not yet committed
  consumer.on('consumer:group:join', ({ assignments }) => {
    behind.clear()
    tell({ event: 'assigned', partitions: (assignments ?? []).filter((each) => each.topic === topic).flatMap((each) => each.partitions) })
  })
  consumer.on('consumer:heartbeat:error', ({ error }) => complain('heartbeat', error))
  const commit = async () => {
    const offsets = [...behind].map(([partition, offset]) => ({ topic, partition, offset: BigInt(offset), leaderEpoch: -1 }))
    if (offsets.length === 0) return
    const told = Object.fromEntries(behind)
    behind.clear()
    try {
      await consumer.commit({ offsets })
      tellCommitted(told)
    } catch (error) {
      complain('commit', error)
      for (const [partition, offset] of Object.entries(told)) if (!behind.has(Number(partition))) behind.set(Number(partition), offset)
    }
  }
  const committing = (async () => {
    while (!isEnding) {
      await pause()
      await commit()
    }
  })()
  const stdin = stdinEnds().then(() => { isEnding = true })
  while (!isEnding && left > 0) {
    try {
      const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest' })
      stdin.then(() => stream.close()).catch((error) => complain('close', error))
      for await (const { partition, offset, key, value } of stream) {
        tellRecord(partition, offset, key, value)
        behind.set(partition, Number(offset) + 1)
        if (--left === 0 || isEnding) break
      }
    } catch (error) {
      complain('consume', error)
      await pause()
    }
  }
  isEnding = true
  await committing
  for (const ended = Date.now(); behind.size > 0 && Date.now() - ended < LAST_COMMITS_MS; await pause()) await commit()
  await consumer.close(true)
}

const write = (bootstrapBrokers, topic, settings) => tellWrite(async () => {
  const producer = new Producer({ clientId: 'platformatic', bootstrapBrokers, ...settings })
  const use = settings.transactionalId ? await producer.beginTransaction() : producer
  await use.send({ acks: -1, messages: [{ topic, value: Buffer.from('value') }] })
})

const produce = (bootstrap, topic) => write(bootstrap, topic, {})
const transaction = (bootstrap, topic) => write(bootstrap, topic, { idempotent: true, transactionalId: 'transactions' })

await run({ assign, group, produce, transaction })
