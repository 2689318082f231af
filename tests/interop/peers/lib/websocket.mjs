// WebSocket on the loopback, either role.

import { WebSocket, WebSocketServer } from 'ws'
import { EXIT_UNREACHABLE, emit, refuse, text } from './script.mjs'

/**
 * Listen or connect as the arguments say and hand each open WebSocket to `attach(ws, conn)`.
 * The same contract as carry() of tcp.mjs; `args.options` goes to the package `ws`.
 */
export function carry (args, attach) {
  const sockets = new Set()
  let server = null

  function take (ws) {
    const conn = take.next++
    sockets.add(ws)
    ws.on('error', (error) => emit('error', { conn, message: text(error), code: error.code ?? null }))
    ws.on('close', (code, reason) => {
      sockets.delete(ws)
      emit('disconnected', { conn, code, reason: reason.toString() })
    })
    emit('connected', { conn })
    attach(ws, conn)
    emit('session', { conn })
  }
  take.next = 0

  const options = { perMessageDeflate: false, ...args.options }
  if (args.listen !== undefined) {
    server = new WebSocketServer({ ...options, port: args.listen, host: args.host, path: args.path })
    server.on('error', (error) => refuse(text(error), EXIT_UNREACHABLE))
    server.on('listening', () => emit('listening', { listening: server.address().port }))
    server.on('connection', take)
  } else {
    const ws = new WebSocket(`ws://${args.host}:${args.connect}${args.path ?? '/'}`, options)
    const unreachable = (error) => refuse(text(error), EXIT_UNREACHABLE)
    ws.once('error', unreachable)
    ws.once('open', () => {
      ws.off('error', unreachable)
      take(ws)
    })
  }

  return async function close () {
    server?.close()
    await Promise.all([...sockets].map((ws) => new Promise((resolve) => {
      ws.once('close', resolve)
      ws.close(1000)
    })))
  }
}

/** A sender should wait for room() while more than this stands in the WebSocket's own queue. */
export const FULL = 4 * 1024 * 1024

/** Wait until the queue is below FULL or the socket is gone; `ws` has no drain event. */
export async function room (ws) {
  while (ws.bufferedAmount > FULL && ws.readyState === WebSocket.OPEN) {
    await new Promise((resolve) => setImmediate(resolve))
  }
}
