// One duplex stream as a test sees it, whatever package made it.
//
// A package's script gives a pipe:
//   start({ data(chunk), end(), finish(), error(error), close(error | null) })
//   write(chunk) -> false when the writer should wait for drained()
//   drained() -> promise, also settled when the stream is over
//   end()     half close
//   abort(text)   reset, destroy or terminate
//   pause(), resume()
//   echoPauses    whether an echo may stop reading while it cannot write

import { emit } from './script.mjs'
import { Tally, bytes } from './bytes.mjs'

const CHUNK = 16384

export class Lane {
  static #next = 0

  number = Lane.#next++
  tally
  sent = 0
  ended = false // the other side said that it writes no more
  finished = false // we said so
  closed = false
  aborted = false // by a command of the test
  held = false // reading stopped by the test
  error = null
  #watchers = []
  #behaviour = {}

  constructor ({ conn, name, id, origin, pipe, quiet = false, digest = !quiet }) {
    Object.assign(this, { conn, name, id, origin, pipe, quiet })
    this.tally = new Tally(digest)
  }

  /** Begin to read; `behaviour` gets data(chunk), end() and close() where it wants them. */
  start (behaviour) {
    this.#behaviour = behaviour
    this.pipe.start({
      data: (chunk) => {
        this.tally.add(chunk)
        this.#behaviour.data?.(chunk)
        this.#changed()
      },
      end: () => {
        this.ended = true
        this.tell('end', { received: this.tally.bytes, sha256: this.tally.sha256 })
        this.#behaviour.end?.()
        this.#changed()
      },
      finish: () => {
        this.finished = true
        this.#changed()
      },
      error: (error) => {
        this.error ??= error.message
        this.tell('error', { message: error.message })
      },
      close: (error) => {
        if (this.closed) return
        this.closed = true
        this.error ??= error?.message ?? null
        this.tell('close', this.status())
        this.#behaviour.close?.()
        this.#changed()
      }
    })
    if (this.held) this.pipe.pause()
  }

  tell (event, fields = {}) {
    if (this.quiet) return
    emit(event, { conn: this.conn, stream: this.number, name: this.name, id: this.id, ...fields })
  }

  status () {
    return {
      conn: this.conn,
      stream: this.number,
      name: this.name,
      id: this.id,
      origin: this.origin,
      received: this.tally.bytes,
      chunks: this.tally.chunks,
      sha256: this.tally.sha256,
      sent: this.sent,
      ended: this.ended,
      finished: this.finished,
      closed: this.closed,
      aborted: this.aborted,
      error: this.error
    }
  }

  /** Wait until `test()` holds; the stream's close ends the wait too. */
  async until (test) {
    while (!test() && !this.closed) {
      await new Promise((resolve) => this.#watchers.push(resolve))
    }
  }

  #changed () {
    if (this.#watchers.length === 0) return
    const watchers = this.#watchers
    this.#watchers = []
    for (const wake of watchers) wake()
  }

  /** Write one chunk and wait for room; false if the stream was over before or meanwhile. */
  async write (chunk) {
    if (this.closed || this.aborted) return false
    this.sent += chunk.byteLength
    if (this.pipe.write(chunk) === false) await this.pipe.drained()
    return !this.closed && !this.aborted
  }

  /** Send `size` bytes of `seed` in writes of `chunk` bytes. */
  async send (size, seed, chunk = CHUNK) {
    for (let done = 0; done < size;) {
      const part = Math.min(chunk, size - done)
      if (!await this.write(bytes(seed, done, part))) return false
      done += part
    }
    return true
  }

  async end () {
    if (this.closed || this.aborted) return
    await this.pipe.end()
  }

  abort (message) {
    this.aborted = true
    this.pipe.abort(message)
  }

  hold () {
    this.held = true
    this.pipe.pause()
  }

  release () {
    this.held = false
    this.pipe.resume()
  }

  /** Send back what comes, and end when the other side has ended. */
  echo () {
    let writing = Promise.resolve()
    let waiting = false
    this.start({
      data: (chunk) => {
        this.sent += chunk.byteLength
        if (this.closed || this.aborted) return
        if (this.pipe.write(chunk) !== false || !this.pipe.echoPauses || waiting) return
        waiting = true
        this.pipe.pause()
        writing = this.pipe.drained().then(() => {
          waiting = false
          if (!this.held && !this.closed && !this.aborted) this.pipe.resume()
        })
      },
      end: () => writing.then(() => this.end())
    })
  }

  /** Wait for the other side's end, and only then answer; without `size`, as much as came. */
  async answerLate (seed, size) {
    await this.until(() => this.ended)
    await this.send(size ?? this.tally.bytes, seed)
    await this.end()
  }
}
