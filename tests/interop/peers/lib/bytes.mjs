// Bytes a test can foretell, and digests of those that came.

import { createHash } from 'node:crypto'

const PERIOD = 65536
const tables = new Map()

// Two periods, so that any slice of up to one period lies in one piece.
function table (seed) {
  const shift = (seed * 31) & 255
  if (!tables.has(shift)) {
    const made = Buffer.alloc(2 * PERIOD)
    for (let i = 0; i < made.length; i++) made[i] = (shift + i * 7 + (i >> 8)) & 255
    tables.set(shift, made)
  }
  return tables.get(shift)
}

/**
 * Bytes `start` to `start + size` of the endless sequence of `seed`, in which
 * byte i = (seed * 31 + i * 7 + (i >> 8)) & 255; it repeats every 65536 bytes.
 * The result may share memory with others: do not change it.
 */
export function bytes (seed, start, size) {
  const source = table(seed)
  const from = start % PERIOD
  if (size <= PERIOD) return source.subarray(from, from + size)
  const made = Buffer.allocUnsafe(size)
  for (let done = 0; done < size; done += PERIOD) {
    source.copy(made, done, from, from + Math.min(PERIOD, size - done))
  }
  return made
}

/** The content a command asks for: `text`, `hex`, or `size` bytes of `seed`; else null. */
export function content (command) {
  if (command.text !== undefined) return Buffer.from(command.text)
  if (command.hex !== undefined) return Buffer.from(command.hex, 'hex')
  if (command.size !== undefined) return bytes(command.seed ?? 0, 0, command.size)
  return null
}

/** Length and sha256 of what was added so far. With `digest` false only the length. */
export class Tally {
  #hash
  bytes = 0
  chunks = 0

  constructor (digest = true) {
    this.#hash = digest ? createHash('sha256') : null
  }

  add (chunk) {
    this.bytes += chunk.byteLength
    this.chunks++
    this.#hash?.update(chunk)
  }

  get sha256 () {
    return this.#hash === null ? null : this.#hash.copy().digest('hex')
  }
}

export function sha256 (data) {
  return createHash('sha256').update(data).digest('hex')
}
