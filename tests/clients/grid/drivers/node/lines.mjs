// What all drivers write and how they end: ../README.md.

export const SESSION_TIMEOUT_MS = 10_000
export const HEARTBEAT_MS = 1_000
export const LAST_COMMITS_MS = 60_000
export const PAUSE_MS = 200

export const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
export const tell = (event) => process.stdout.write(`${JSON.stringify(event)}\n`)
export const complain = (what, error) => console.error(`${what}: ${error?.stack ?? error}`)

export function tellRecord (partition, offset, key, value) {
  tell({ event: 'record', partition, offset: Number(offset), key: key?.toString() ?? null, value: value?.toString() ?? null })
}

export const tellCommitted = (offsets) => tell({ event: 'committed', offsets })

// Resolves when standard input ends.
export const stdinEnds = () => new Promise((resolve) => process.stdin.on('end', resolve).resume())

// What the client says of a write: of an error in an error, all of them.
export async function tellWrite (write) {
  try {
    await write()
    tell({ event: 'written' })
  } catch (error) {
    tell({ event: 'refused', error: causes(error).join(': ') })
  }
}

function causes (error) {
  if (error === undefined || error === null) return []
  const inner = Array.isArray(error.errors) ? error.errors : [error.cause]
  return [`${error.type ?? error.apiId ?? error.name} ${error.message}`, ...inner.flatMap(causes)]
}

// Calls the mode that the command line names, with its other words.
export async function run (modes) {
  const [mode, bootstrap, topic, ...rest] = process.argv.slice(2)
  if (!modes[mode]) {
    console.error(`usage: node CLIENT.mjs ${Object.keys(modes).join('|')} BOOTSTRAP TOPIC …`)
    process.exit(2)
  }
  try {
    await modes[mode](bootstrap.split(','), topic, ...rest)
  } catch (error) {
    complain(mode, error)
    process.exitCode = 1
  }
  // Connections that a client keeps open do not keep the program; what was written out goes out first.
  process.stdout.write('', () => process.exit())
}
