// @libp2p/mplex over TCP, without the rest of libp2p. See README.md for the commands.

import { mplex } from '@libp2p/mplex'
import { readArguments } from './lib/script.mjs'
import { serveDuplex } from './lib/duplex.mjs'

// The package needs it and Node 20 has it not.
Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new Promise((yes, no) => { resolve = yes; reject = no })
  return { promise, resolve, reject }
}

const args = readArguments()

const log = Object.assign(() => {}, { enabled: false, error () {}, trace () {}, newScope: () => log })

/** The part of a libp2p connection that a stream muxer uses, over a socket. */
class SocketConnection {
  log = log
  #listeners = { message: [], drain: [], close: [] }

  constructor (socket) {
    this.socket = socket
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
    for (const part of list) room = this.socket.write(part)
    process.nextTick(() => this.socket.uncork())
    return room
  }

  abort () {
    this.socket.resetAndDestroy()
  }
}

class MplexPipe {
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

serveDuplex(args, (socket, hooks) => {
  const factory = mplex({ disconnectThreshold: Infinity, ...args.options })()
  const connection = new SocketConnection(socket)
  const muxer = factory.createStreamMuxer(connection)

  // The package ignores names; they are noted here so that a test can tell streams apart.
  let name = ''
  const handle = muxer.handleMessage.bind(muxer)
  muxer.handleMessage = (message) => {
    if (message.type === 0) name = Buffer.from(message.data.subarray()).toString()
    handle(message)
  }
  const abort = muxer.abort.bind(muxer)
  muxer.abort = (error) => {
    hooks.fault(error)
    abort(error)
  }
  muxer.addEventListener('stream', ({ detail: stream }) => {
    hooks.incoming({ pipe: new MplexPipe(stream), name, id: stream.streamId })
  })
  return {
    async open () {
      const stream = await muxer.createStream()
      return { pipe: new MplexPipe(stream), name: stream.id, id: stream.streamId }
    }
  }
})
