// A bare WebSocket peer by npm ws: echoes messages, sends, counts. See README.md.

import { emit, obey, readArguments, secondsSince, whole } from './lib/script.mjs'
import { content, bytes, sha256 } from './lib/bytes.mjs'
import { sunk } from './lib/bench.mjs'
import { FULL, carry, room } from './lib/websocket.mjs'

const args = readArguments({ path: { type: 'string' } })
const sockets = []
const sink = { bytes: 0, messages: 0, streams: 0, first: null, watch: null }
let mode = { incoming: 'echo' }

function received (ws, conn, data, binary) {
  if (mode.incoming === 'sink') {
    sink.first ??= performance.now()
    sink.bytes += data.length
    sink.messages++
    sink.watch?.()
    return
  }
  if (!mode.quiet) {
    const hex = data.length <= 64 ? data.toString('hex') : null
    emit('message', { conn, bytes: data.length, sha256: sha256(data), binary, hex })
  }
  if (mode.incoming === 'echo') ws.send(data, { binary })
}

const close = carry(args, (ws, conn) => {
  sockets[conn] = ws
  ws.on('message', (data, binary) => received(ws, conn, data, binary))
  ws.on('ping', (data) => emit('ping', { conn, hex: data.toString('hex') }))
  ws.on('pong', (data) => emit('pong', { conn, hex: data.toString('hex') }))
})

function socket (command) {
  const conn = command.conn ?? sockets.length - 1
  if (sockets[conn] === undefined) throw new Error(`no connection ${conn}`)
  return sockets[conn]
}

function clearSink () {
  Object.assign(sink, { bytes: 0, messages: 0, first: null })
}

const sent = (ws, data, options) => new Promise((resolve, reject) => {
  ws.send(data, options, (error) => error ? reject(error) : resolve())
})

obey({
  mode: (command) => {
    if (!['echo', 'hold', 'sink'].includes(command.incoming)) {
      throw new Error('"incoming" must be one of echo hold sink')
    }
    mode = command
    if (mode.incoming === 'sink') clearSink()
  },

  // One message: text as a text message, anything else as a binary one.
  send: async (command) => {
    const data = content(command) ?? Buffer.alloc(0)
    await sent(socket(command), data, { binary: command.text === undefined })
    return { bytes: data.length }
  },

  // One message in `parts` WebSocket fragments.
  fragments: async (command) => {
    const ws = socket(command)
    const data = content(command) ?? Buffer.alloc(0)
    const parts = Math.max(1, whole(command, 'parts', 2))
    const size = Math.ceil(data.length / parts)
    for (let i = 0; i < parts; i++) {
      const last = i === parts - 1
      await sent(ws, data.subarray(i * size, last ? undefined : (i + 1) * size), { binary: true, fin: last })
    }
    return { bytes: data.length, parts }
  },

  ping: (command) => { socket(command).ping(content(command) ?? '') },
  pause: (command) => { socket(command).pause() },
  resume: (command) => { socket(command).resume() },
  disconnect: (command) => {
    if (command.abrupt) socket(command).terminate()
    else socket(command).close(command.code ?? 1000, command.reason ?? '')
  },

  blast: async (command) => {
    const ws = socket(command)
    const total = whole(command, 'bytes')
    const size = whole(command, 'size', 65536)
    if (size === 0) throw new Error('"size" must be at least 1')
    const message = bytes(whole(command, 'seed', 0), 0, size)
    const start = performance.now()
    let messages = 0
    let last = Promise.resolve()
    for (let left = total; left > 0; left -= size) {
      messages++
      const part = left < size ? message.subarray(0, left) : message
      if (left <= size) last = sent(ws, part)
      else ws.send(part)
      if (ws.bufferedAmount > FULL) await room(ws)
    }
    await last
    return { bytes: total, messages, seconds: secondsSince(start) }
  },

  sink: (command) => {
    if (mode.incoming !== 'sink') {
      mode = { incoming: 'sink' }
      clearSink()
    }
    return sunk(sink, command)
  }
}, close)
