// The commands that every peer with duplex streams obeys.
//
// A package's script gives `attach(socket, hooks)` -> session, where a session has
//   open(name, command) -> { pipe, name, id } or a promise of it
// and calls hooks.incoming({ pipe, name, id }) for a stream the other side opened, and
// hooks.fault(error) when the package gives up on the connection.

import { emit, obey, secondsSince, text, whole } from './script.mjs'
import { content, bytes } from './bytes.mjs'
import { Lane } from './lane.mjs'
import { carry } from './tcp.mjs'
import { benchCommands } from './bench.mjs'
import { obeyFirstLine, obeyName } from './testee.mjs'

const MODES = ['echo', 'hold', 'stall', 'late', 'sink', 'reject']

export class Desk {
  lanes = new Map() // number -> Lane
  sessions = []
  sink = { bytes: 0, messages: 0, streams: 0, first: null, last: null, watch: null }
  #endings = []
  #ways = { '': { incoming: 'echo' } } // exact name, '' for all others -> the mode command

  constructor (modes = MODES) {
    this.modes = modes
  }

  session (command) {
    const conn = command.conn ?? this.sessions.length - 1
    const session = this.sessions[conn]
    if (session === undefined) throw new Error(`no connection ${conn}`)
    return { session, conn }
  }

  /** The stream a command means: by its number, or the newest of that name. */
  lane (command) {
    if (command.stream !== undefined) {
      const found = this.lanes.get(command.stream)
      if (found === undefined) throw new Error(`no stream ${command.stream}`)
      return found
    }
    const { name, conn } = command
    const found = [...this.lanes.values()].reverse()
      .find((lane) => lane.name === name && (conn === undefined || lane.conn === conn))
    if (found === undefined) throw new Error(`no stream named ${JSON.stringify(name)}`)
    return found
  }

  /** Take up a stream in the way its name, or else the default, asks for. */
  way (name) {
    return this.#ways['=' + name] ?? this.#ways['']
  }

  /** How the streams of a testee's connection ended, a line for each. */
  endings (conn) {
    this.#endings[conn] ??= []
    return this.#endings[conn]
  }

  /** Let every stream that comes do what its name, or its first line, asks for. */
  beTestee (firstLines) {
    this.firstLines = firstLines
    this.#ways[''] = { incoming: 'testee', quiet: true }
  }

  setWay (command) {
    if (!this.modes.includes(command.incoming)) {
      throw new Error(`"incoming" must be one of ${this.modes.join(' ')}`)
    }
    this.#ways[command.name === undefined ? '' : '=' + command.name] = command
    if (command.incoming === 'sink') this.clearSink()
  }

  incoming (conn, made, way = this.way(made.name)) {
    const quiet = way.quiet ?? way.incoming === 'sink'
    const lane = this.#add(new Lane({ ...made, conn, origin: 'remote', quiet }))
    lane.tell('stream', { origin: 'remote' })
    this.behave(lane, way)
    return lane
  }

  behave (lane, way) {
    switch (way.incoming) {
      case 'echo':
        lane.echo()
        break
      case 'stall':
        lane.held = true
        lane.start({})
        break
      case 'late':
        lane.start({})
        lane.answerLate(way.seed ?? 0, way.size)
          .catch((error) => lane.tell('error', { message: text(error) }))
        break
      case 'sink':
        lane.start(this.#sinking(lane))
        break
      case 'reject':
        lane.start({})
        lane.abort(way.text)
        break
      case 'testee': {
        const open = () => this.sessions[lane.conn].open('opened', {})
        const endings = this.endings(lane.conn)
        if (this.firstLines) obeyFirstLine(lane, open, endings)
        else {
          obeyName(lane, open, endings)
            .catch((error) => lane.tell('error', { message: text(error) }))
        }
        break
      }
      default:
        lane.start({})
    }
  }

  /** Open a stream and begin to read it; nothing is sent yet. */
  async open (command, name, quiet = false) {
    const { session, conn } = this.session(command)
    return this.take(conn, await session.open(name, command), command, quiet)
  }

  take (conn, made, command, quiet = false) {
    const lane = this.#add(new Lane({ ...made, conn, origin: 'local', quiet }))
    if (command.pause) lane.held = true
    lane.start({})
    return lane
  }

  #add (lane) {
    if (!lane.quiet) this.lanes.set(lane.number, lane) // quiet ones come by the thousand
    return lane
  }

  clearSink () {
    Object.assign(this.sink, { bytes: 0, messages: 0, streams: 0, first: null, last: null })
  }

  #sinking (lane) {
    const sink = this.sink
    return {
      data: (chunk) => {
        sink.first ??= performance.now()
        sink.bytes += chunk.byteLength
        sink.messages++
        sink.watch?.()
      },
      end: () => {
        sink.first ??= performance.now()
        sink.streams++
        lane.end()
        sink.watch?.()
      }
    }
  }
}

function names (command) {
  if (command.names !== undefined) return command.names
  const count = whole(command, 'count', 1)
  const prefix = command.prefix ?? 'stream-'
  return Array.from({ length: count }, (_, i) => prefix + i)
}

/** Prove that the connection lives: send a few bytes to an echo and wait for them. */
async function ping (desk, command) {
  const size = whole(command, 'size', 16)
  const limit = whole(command, 'timeout_ms', 5000)
  const start = performance.now()
  const late = new Error(`no answer to the ping in ${limit} ms`)
  let timer
  const clock = new Promise((resolve, reject) => {
    timer = setTimeout(() => reject(late), limit)
  })
  const fresh = command.stream === undefined && command.name === undefined
  async function exchange () {
    const lane = fresh ? await desk.open(command, 'ping') : desk.lane(command)
    const before = lane.tally.bytes
    await lane.write(bytes(whole(command, 'seed', 0), 0, size))
    await lane.until(() => lane.tally.bytes >= before + size)
    const got = lane.tally.bytes - before
    if (got < size) throw new Error(`the stream was over after ${got} of ${size} bytes`)
    if (fresh) await lane.end()
    return lane
  }
  try {
    const lane = await Promise.race([exchange(), clock])
    return { stream: lane.number, name: lane.name, id: lane.id, seconds: secondsSince(start) }
  } finally {
    clearTimeout(timer)
  }
}

export function duplexCommands (desk) {
  const one = (act) => async (command) => {
    const lane = desk.lane(command)
    return (await act(lane, command)) ?? { stream: lane.number }
  }
  return {
    mode: (command) => desk.setWay(command),

    open: async (command) => {
      const lanes = await Promise.all(names(command).map((name) => desk.open(command, name)))
      return { streams: lanes.map((lane) => lane.status()) }
    },

    // Open, send, end, and report what came back, all streams at once.
    exchange: async (command) => {
      const size = whole(command, 'size', 0)
      const seed = whole(command, 'seed', 0)
      const start = performance.now()
      const results = await Promise.all(names(command).map(async (name, index) => {
        const lane = await desk.open(command, name)
        await lane.send(size, seed + index, command.chunk)
        await lane.end()
        await lane.until(() => lane.ended)
        return lane.status()
      }))
      return { results, seconds: secondsSince(start) }
    },

    send: one(async (lane, command) => {
      const whole = command.size === undefined ? content(command) : null
      if (whole !== null) await lane.write(whole)
      else await lane.send(command.size ?? 0, command.seed ?? 0, command.chunk)
      if (command.end) await lane.end()
      return { stream: lane.number, sent: lane.sent, closed: lane.closed }
    }),

    end: one((lane) => lane.end()),
    reset: one((lane, command) => { lane.abort(command.text) }),
    pause: one((lane) => { lane.hold() }),
    resume: one((lane) => { lane.release() }),
    late: one(async (lane, command) => {
      await lane.answerLate(command.seed ?? 0, command.size)
      return lane.status()
    }),
    status: one((lane) => lane.status()),
    wait: one(async (lane, command) => {
      const tests = {
        end: () => lane.ended,
        close: () => lane.closed,
        bytes: () => lane.tally.bytes >= whole(command, 'bytes')
      }
      const test = tests[command.until ?? 'bytes']
      if (test === undefined) throw new Error('"until" is end, close or bytes')
      await lane.until(test)
      return lane.status()
    }),

    streams: () => ({ streams: [...desk.lanes.values()].map((lane) => lane.status()) }),
    ping: (command) => ping(desk, command),
    ...benchCommands(desk)
  }
}

/** Run a duplex-stream peer until stdin ends. */
export function serveDuplex (args, attach, { modes = MODES, more = () => ({}), named = true } = {}) {
  const desk = new Desk(modes)
  if (args.testee) desk.beTestee(!named)
  const sockets = []
  const close = carry(args, async (socket, conn) => {
    sockets[conn] = socket
    if (args.testee && args.connect !== undefined) socket.once('close', () => process.exit(0))
    const hooks = {
      incoming: (made, way) => desk.incoming(conn, made, way),
      fault: (error) => emit('fault', { conn, message: text(error) }),
      hangUp: () => socket.destroySoon(),
      desk,
      conn
    }
    try {
      desk.sessions[conn] = await attach(socket, hooks)
      emit('session', { conn })
    } catch (error) {
      hooks.fault(error)
    }
  })
  const disconnect = (command) => {
    const socket = sockets[command.conn ?? sockets.length - 1]
    if (socket === undefined) throw new Error('no such connection')
    if (command.abrupt) socket.resetAndDestroy()
    else socket.end()
  }
  if (args.testee) return
  obey({ ...duplexCommands(desk), ...more(desk), disconnect }, close)
}
