// What the stream muxers of libp2p need of a connection, over a socket, and their streams as pipes.

// The packages need it and Node 20 has it not.
Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new Promise((yes, no) => { resolve = yes; reject = no })
  return { promise, resolve, reject }
}

const log = Object.assign(() => {}, { enabled: false, error () {}, trace () {}, newScope: () => log })

/** The part of a libp2p connection that a stream muxer uses, over a socket. */
export class SocketConnection {
  log = log
  #listeners = { message: [], drain: [], close: [] }

  constructor (socket, direction) {
    this.socket = socket
    this.direction = direction
    socket.on('data', (data) => this.#tell('message', { data }))
    socket.on('drain', () => this.#tell('drain', {}))
    socket.on('close', () => this.#tell('close', {}))
  }

  addEventListener (type, listener) {
    this.#listeners[type].push(listener)
  }

  #tell (type, event) {
    for (const listener of this.#listeners[type]) listener(event)
  }

  send (list) {
    let room = true
    this.socket.cork()
    for (const part of list instanceof Uint8Array ? [list] : list) room = this.socket.write(part)
    process.nextTick(() => this.socket.uncork())
    return room
  }

  /** What was sent leaves before the reset, as with the TCP transport of libp2p. */
  abort () {
    while (this.socket.writableCorked > 0) this.socket.uncork()
    this.socket.resetAndDestroy()
  }
}

export class StreamPipe {
  // A paused stream is aborted by the package once 4 MiB wait in it, so an echo keeps reading.
  echoPauses = false
  told = null
  ending = false
  closing = undefined // the error, or null, of a close that waits for the reader
  #remoteEnded = false
  #waiting = []

  constructor (stream) {
    this.stream = stream
    stream.addEventListener('drain', () => this.#wake())
  }

  start (told) {
    const { stream } = this
    this.told = told
    stream.addEventListener('remoteCloseWrite', () => { this.#remoteEnded = true })
    stream.addEventListener('end', () => {
      // A reset and a lost connection are told as `end` too; those are no end of data.
      if (this.#remoteEnded && stream.status !== 'aborted' && stream.status !== 'reset') told.end()
      if (this.closing !== undefined) told.close(this.closing)
    })
    stream.addEventListener('close', (event) => {
      this.#wake()
      if (this.ending && !event.error) told.finish()
      if (event.error) told.error(event.error)
      // What waits in a paused stream may still be read: it is over when that is done.
      if (stream.readBufferLength > 0) this.closing = event.error ?? null
      else told.close(event.error ?? null)
    })
    stream.addEventListener('message', (event) => {
      if (event.data instanceof Uint8Array) told.data(event.data)
      else for (const part of event.data) told.data(part)
    })
  }

  write (chunk) {
    if (this.stream.writeStatus !== 'writable') return true
    return this.stream.send(chunk)
  }

  drained () {
    if (this.stream.status !== 'open' || !this.stream.writableNeedsDrain) return Promise.resolve()
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  #wake () {
    for (const resolve of this.#waiting.splice(0)) resolve()
  }

  async end () {
    this.ending = true
    try {
      await this.stream.close()
    } catch (error) {
      if (this.stream.status === 'open') throw error
      return // it was reset before its Close could leave; that is told as `close`
    }
    this.told.finish()
  }

  abort (message) {
    this.stream.abort(new Error(message ?? 'aborted by the test'))
  }

  pause () {
    if (this.stream.readStatus === 'readable') this.stream.pause()
  }

  resume () {
    if (this.stream.readStatus === 'paused') this.stream.resume()
  }
}
