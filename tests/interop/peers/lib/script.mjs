// How every peer talks to its test: commands in and events out, one JSON object a line.

import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'

export const EXIT_USAGE = 2
export const EXIT_UNREACHABLE = 4
export const EXIT_CRASH = 70

/** Print one event. Writes to a pipe are synchronous on POSIX, so none is lost at exit. */
export function emit (event, fields = {}) {
  process.stdout.write(JSON.stringify({ event, ...fields }) + '\n')
}

export function text (error) {
  return error instanceof Error ? error.message : String(error)
}

/** Say what is wrong and leave. */
export function refuse (message, code = EXIT_USAGE) {
  emit('error', { message })
  process.exit(code)
}

function crash (kind, error) {
  emit('crash', { kind, message: text(error), stack: error?.stack ?? null })
  process.exit(EXIT_CRASH)
}

process.on('uncaughtException', (error) => crash('exception', error))
process.on('unhandledRejection', (error) => crash('rejection', error))
process.stdout.on('error', () => process.exit(0)) // the test has gone: nobody to tell

/**
 * The command line: what all peers share, and `own` (in the form of util.parseArgs).
 * Port numbers are checked here; `--options` is a JSON object for the package itself.
 */
export function readArguments (own = {}) {
  let values
  try {
    values = parseArgs({
      options: {
        listen: { type: 'string' },
        connect: { type: 'string' },
        host: { type: 'string', default: '127.0.0.1' },
        options: { type: 'string', default: '{}' },
        testee: { type: 'boolean', default: false },
        ...own
      }
    }).values
    values.options = JSON.parse(values.options)
  } catch (error) {
    refuse(text(error))
  }
  if ((values.listen === undefined) === (values.connect === undefined)) {
    refuse('give either --listen PORT or --connect PORT')
  }
  for (const role of ['listen', 'connect']) {
    if (values[role] === undefined) continue
    const port = Number(values[role])
    if (!Number.isInteger(port) || port < 0 || port > 65535) {
      refuse(`--${role} ${values[role]}: a port is a number from 0 to 65535`)
    }
    values[role] = port
  }
  return values
}

/**
 * Obey the commands on stdin until it ends, then call `farewell` and exit with 0.
 *
 * A command is `{"do": NAME, "call": ANY, ...}`; its one answer is the event `reply` with the
 * same `do` and `call`, `ok`, and either the result's fields or `error`. Commands start in the
 * order of their lines; a long one does not hold up the next.
 */
export function obey (commands, farewell) {
  const lines = createInterface({ input: process.stdin, crlfDelay: Infinity })
  lines.on('line', async (line) => {
    if (line.trim() === '') return
    let command
    try {
      command = JSON.parse(line)
    } catch (error) {
      emit('error', { message: `not a JSON line: ${text(error)}` })
      return
    }
    const heading = { do: command.do, call: command.call ?? null }
    try {
      if (!Object.hasOwn(commands, command.do)) {
        throw new Error(`no command "${command.do}"; known: ${Object.keys(commands).join(' ')}`)
      }
      const result = await commands[command.do](command)
      emit('reply', { ...heading, ok: true, ...result })
    } catch (error) {
      emit('reply', { ...heading, ok: false, error: text(error) })
    }
  })
  lines.on('close', async () => {
    await Promise.race([farewell(), sleep(500)])
    process.exit(0)
  })
}

export function sleep (milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds))
}

/** Seconds since `start` (a value of performance.now()). */
export function secondsSince (start) {
  return (performance.now() - start) / 1000
}

/** A whole number from a command, or an error that names the field. */
export function whole (command, field, fallback) {
  const value = command[field] ?? fallback
  if (!Number.isSafeInteger(value) || value < 0) {
    throw new Error(`"${field}" must be a whole number, not ${JSON.stringify(value)}`)
  }
  return value
}
