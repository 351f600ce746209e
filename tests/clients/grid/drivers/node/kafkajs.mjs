// kafkajs. It has no way to read partitions without a group.
import kafkajs from 'kafkajs'
import { complain, HEARTBEAT_MS, run, SESSION_TIMEOUT_MS, stdinEnds, tell, tellCommitted, tellRecord, tellWrite } from './lines.mjs'

const { Kafka, logLevel } = kafkajs
// It looks for a coordinator that is gone as often as `retries` multiplied by itself says, ever more slowly: over a minute with its default of 5.
const retry = { retries: 2 }
const client = (brokers) => new Kafka({ brokers, retry, logLevel: logLevel.WARN, logCreator: () => ({ log }) => complain('kafkajs', log.message) })

async function group (bootstrap, topic, groupId, count) {
  const consumer = client(bootstrap).consumer({
    groupId,
    sessionTimeout: SESSION_TIMEOUT_MS,
    heartbeatInterval: HEARTBEAT_MS,
    maxWaitTimeInMs: 500,
    retry: { ...retry, restartOnFailure: async () => true }
  })
  let left = Number(count) || Infinity
  let finish
  const finished = new Promise((resolve) => { finish = resolve })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => tell({ event: 'assigned', partitions: payload.memberAssignment[topic] ?? [] }))
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch: { partition, messages }, resolveOffset, heartbeat, isStale }) => {
      if (isStale()) return
      const taken = messages.slice(0, left)
      left -= taken.length
      for (const { offset, key, value } of taken) tellRecord(partition, offset, key, value)
      if (taken.length > 0) {
        const next = Number(taken.at(-1).offset) + 1
        // What fails here has the library join again and read from the last commit.
        await consumer.commitOffsets([{ topic, partition, offset: String(next) }])
        tellCommitted({ [partition]: next })
        resolveOffset(taken.at(-1).offset)
      }
      await heartbeat()
      if (left === 0) finish()
    }
  })
  await Promise.race([finished, stdinEnds()])
  await consumer.disconnect()
}

const record = (topic) => ({ topic, acks: -1, messages: [{ value: 'value' }] })

const produce = (bootstrap, topic) => tellWrite(async () => {
  const producer = client(bootstrap).producer()
  await producer.connect()
  await producer.send(record(topic))
})

const transaction = (bootstrap, topic) => tellWrite(async () => {
  const producer = client(bootstrap).producer({ transactionalId: 'transactions', idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  await (await producer.transaction()).send(record(topic))
})

await run({ group, produce, transaction })
