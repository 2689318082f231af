// npm omnistreams over WebSocket, path /omnistreams. See README.md for the commands.
// On the wire it speaks the older numbering of message types.

import { Multiplexer, WebSocketTransport } from 'omnistreams'
import { emit, obey, readArguments, secondsSince, whole } from './lib/script.mjs'
import { content, bytes, sha256 } from './lib/bytes.mjs'
import { pool, shares, sunk } from './lib/bench.mjs'
import { FULL, carry, room } from './lib/websocket.mjs'
import { Conduit, Reader, Writer } from './lib/conduits.mjs'

const MODES = ['echo', 'collect', 'hold', 'sink', 'reject']
const WINDOW = 64

const args = readArguments({ path: { type: 'string', default: '/omnistreams' } })
const conduits = new Map() // number -> Reader or Writer
const sessions = []
const ways = { '': { incoming: 'echo', quiet: args.testee } } // exact metadata, '' for all others
const sink = { bytes: 0, messages: 0, streams: 0, first: null, watch: null }
let echoControl = false

function remember (conduit) {
  if (!conduit.quiet) conduits.set(conduit.number, conduit)
  return conduit
}

function session (command) {
  const conn = command.conn ?? sessions.length - 1
  if (sessions[conn] === undefined) throw new Error(`no connection ${conn}`)
  return sessions[conn]
}

function find (command, kind) {
  const found = command.stream === undefined
    ? [...conduits.values()].reverse().find((one) => one.name === command.name && one instanceof kind)
    : conduits.get(command.stream)
  if (!(found instanceof kind)) {
    throw new Error(`no ${kind.name} ${JSON.stringify(command.stream ?? command.name)}`)
  }
  return found
}

class Session {
  constructor (ws, conn) {
    this.ws = ws
    this.conn = conn
    this.mux = new Multiplexer(new WebSocketTransport(ws))
    this.mux.onConduit((producer, metadata) => this.#incoming(producer, metadata))
    this.mux.onControlMessage((message) => this.#control(message))
  }

  #control (message) {
    const data = Buffer.from(message)
    const hex = data.length <= 1024 ? data.toString('hex') : null
    emit('control', { conn: this.conn, bytes: data.length, sha256: sha256(data), hex })
    if (echoControl) this.mux.sendControlMessage(data)
  }

  open (metadata, quiet = false) {
    const id = this.mux._availableStreamIds[0] // the package tells nobody
    const consumer = this.mux.createConduit(metadata)
    if (consumer === null) throw new Error('all 256 stream ids are in use')
    return remember(new Writer(consumer, { conn: this.conn, id, metadata, quiet }))
  }

  #incoming (producer, data) {
    const receivers = this.mux._receivers
    const id = Number(Object.keys(receivers).find((key) => receivers[key] === producer))
    const metadata = Buffer.from(data ?? [])
    const way = ways['=' + metadata.toString()] ?? ways['']
    const quiet = way.quiet ?? way.incoming === 'sink'
    const reader = remember(new Reader(producer, { conn: this.conn, id, metadata, quiet }))
    reader.tell('stream', { origin: 'remote', metadata_hex: metadata.toString('hex') })
    reader.showMessages = way.messages ?? false
    this.#behave(reader, way)
  }

  #behave (reader, way) {
    const window = way.window ?? WINDOW
    if (way.incoming === 'collect') {
      reader.keep(window)
    } else if (args.testee) {
      // The tester asks for the echo only when it has sent: take messages at once, and keep them.
      const writer = this.open(reader.metadata, true)
      let work = Promise.resolve()
      reader.onData = (data) => {
        const copy = Buffer.from(data)
        work = work.then(() => writer.send(copy))
      }
      reader.onEnd = () => { work.then(() => writer.end()) }
      reader.keep(window)
    } else if (way.incoming === 'echo') {
      // A stream flows one way: the echo is a stream back with the same metadata, which asks
      // for as many messages as the other side asks of it.
      const writer = this.open(reader.metadata, reader.quiet)
      writer.onCredit = (amount) => reader.request(amount)
      writer.onTerminated = () => { if (!reader.over) reader.cancel() }
      reader.onData = (data) => writer.put(data)
      reader.onEnd = () => writer.end()
    } else if (way.incoming === 'sink') {
      reader.onData = (data) => {
        sink.first ??= performance.now()
        sink.bytes += data.byteLength
        sink.messages++
        sink.watch?.()
      }
      reader.onEnd = () => {
        sink.first ??= performance.now()
        sink.streams++
        sink.watch?.()
      }
      reader.keep(window)
    } else if (way.incoming === 'answer') { // of `pings`
      reader.onData = way.answered
      reader.keep(window)
    } else if (way.incoming === 'reject') {
      reader.cancel()
    }
  }
}

function metadataOf (command) {
  if (command.metadata_hex !== undefined) return Buffer.from(command.metadata_hex, 'hex')
  return Buffer.from(command.metadata ?? '')
}

function setMode (command) {
  if (!MODES.includes(command.incoming)) {
    throw new Error(`"incoming" must be one of ${MODES.join(' ')}`)
  }
  ways[command.name === undefined ? '' : '=' + command.name] = command
  if (command.incoming === 'sink') {
    Object.assign(sink, { bytes: 0, messages: 0, streams: 0, first: null })
  }
}

const close = carry(args, (ws, conn) => {
  sessions[conn] = new Session(ws, conn)
  if (args.testee && args.connect !== undefined) ws.once('close', () => process.exit(0))
})

const commands = {
  mode: setMode,
  echo_control: (command) => { echoControl = command.on ?? true },
  control: (command) => { session(command).mux.sendControlMessage(content(command) ?? Buffer.alloc(0)) },

  disconnect: (command) => {
    const { ws } = session(command)
    if (command.abrupt) ws.terminate()
    else ws.close(command.code ?? 1000, command.reason ?? '')
  },

  open: (command) => session(command).open(metadataOf(command)).status(),

  // COUNT messages of SIZE bytes, or one of `text` or `hex`. "force" does not wait for credit.
  send: async (command) => {
    const writer = find(command, Writer)
    const size = command.size ?? 0
    const one = command.size === undefined ? content(command) : null
    const count = one === null ? whole(command, 'count', 1) : 1
    for (let i = 0; i < count; i++) {
      const data = one ?? bytes(command.seed ?? 0, i * size, size)
      if (command.force) writer.put(data)
      else if (!await writer.send(data)) break
    }
    if (command.end) writer.end()
    return writer.status()
  },

  end: (command) => { find(command, Writer).end() },
  cancel: (command) => { find(command, Conduit).cancel() },
  request: (command) => {
    const reader = find(command, Reader)
    if (command.raw) reader.requestRaw(command.amount)
    else reader.request(whole(command, 'amount'))
    return reader.status()
  },
  keep: (command) => { find(command, Reader).keep(whole(command, 'window')) },
  status: (command) => find(command, Conduit).status(),
  streams: () => ({ streams: [...conduits.values()].map((one) => one.status()) }),
  wait: async (command) => {
    const one = find(command, Conduit)
    await one.until(() => {
      if (command.credit !== undefined) return one.granted >= command.credit
      return command.messages !== undefined && one.status().messages >= command.messages
    })
    return one.status()
  },

  // Open, send and end, all streams at once; then wait for the streams that an echo opens
  // back. Streams that come with one of these names are collected while this runs.
  exchange: async (command) => {
    const names = command.names ?? Array.from(
      { length: whole(command, 'streams', 1) }, (_, i) => (command.prefix ?? 'stream-') + i)
    const [count, size] = [whole(command, 'count', 1), whole(command, 'size', 0)]
    const start = performance.now()
    const already = new Set(conduits.keys())
    for (const name of names) setMode({ incoming: 'collect', name, window: command.window })
    const results = await Promise.all(names.map(async (name, index) => {
      const writer = session(command).open(Buffer.from(name))
      await writer.sendMany(count, size, (command.seed ?? 0) + index)
      writer.end()
      const back = () => [...conduits.values()]
        .find((one) => one instanceof Reader && one.name === name && !already.has(one.number))
      while (back() === undefined) await new Promise((resolve) => setTimeout(resolve, 5))
      await back().until(() => false)
      return { ...back().status(), sent: writer.sent, messages_sent: writer.messages }
    }))
    for (const name of names) delete ways['=' + name]
    return { results, seconds: secondsSince(start) }
  },

  // Send BYTES in messages of SIZE over STREAMS, as the readers' requests allow.
  blast: async (command) => {
    const { ws } = session(command)
    const total = whole(command, 'bytes')
    const size = whole(command, 'size', 65536)
    if (size === 0) throw new Error('"size" must be at least 1')
    const count = whole(command, 'streams', 1)
    const message = bytes(whole(command, 'seed', 0), 0, size)
    const writers = Array.from({ length: count }, (_, i) => {
      return session(command).open(Buffer.from(`blast-${i}`), true)
    })
    const start = performance.now()
    await Promise.all(shares(total, count).map(async (share, i) => {
      const writer = writers[i]
      for (let left = share; left > 0; left -= size) {
        if (writer.credit <= 0) await writer.until(() => writer.credit > 0)
        if (writer.over) throw new Error(`stream blast-${i} was cancelled`)
        writer.put(left < size ? message.subarray(0, left) : message)
        if (ws.bufferedAmount > FULL) await room(ws)
      }
      writer.end()
    }))
    const messages = writers.reduce((sum, writer) => sum + writer.messages, 0)
    return { bytes: total, messages, streams: count, seconds: secondsSince(start) }
  },

  sink: (command) => {
    if (ways[''].incoming !== 'sink') setMode({ incoming: 'sink', window: command.window })
    return sunk(sink, command)
  },

  // COUNT round trips of SIZE bytes, one at a time, over a stream and the one an echo opens back.
  pings: async (command) => {
    const count = whole(command, 'count')
    const message = bytes(whole(command, 'seed', 0), 0, whole(command, 'size', 16))
    let answered = null
    ways['=echo'] = { incoming: 'answer', quiet: true, answered: () => answered() }
    const writer = session(command).open(Buffer.from('echo'), true)
    const seconds = []
    for (let i = 0; i < count; i++) {
      if (writer.credit <= 0) await writer.until(() => writer.credit > 0)
      const start = performance.now()
      await new Promise((resolve) => {
        answered = resolve
        writer.put(message)
      })
      seconds.push(secondsSince(start))
    }
    writer.end()
    delete ways['=echo']
    return { seconds }
  },

  // Open a stream, wait for the first request, end it. An end has no answer of its own.
  openclose: async (command) => {
    const count = whole(command, 'count')
    const inFlight = Math.min(256, Math.max(1, whole(command, 'in_flight', 1)))
    const start = performance.now()
    await pool(count, inFlight, async (index) => {
      const writer = session(command).open(Buffer.from(`stream-${index}`), true)
      await writer.until(() => writer.granted > 0)
      if (writer.over) throw new Error(`stream ${index} was cancelled`)
      writer.end()
    })
    return { count, in_flight: inFlight, seconds: secondsSince(start) }
  }
}

if (!args.testee) obey(commands, close)
