// TCP on the loopback, either role.

import net from 'node:net'
import { EXIT_UNREACHABLE, emit, refuse, text } from './script.mjs'

/**
 * Listen or connect as the arguments say and hand each socket to `attach(socket, conn)`;
 * `conn` numbers the connections of this process from 0. Errors and the end of each
 * connection are told as events. Returns a function that closes all.
 */
export function carry (args, attach) {
  const sockets = new Set()
  let server = null

  function take (socket) {
    const conn = take.next++
    sockets.add(socket)
    socket.setNoDelay(true)
    socket.on('error', (error) => emit('error', { conn, message: text(error), code: error.code ?? null }))
    socket.on('close', () => {
      sockets.delete(socket)
      emit('disconnected', { conn, bytes_in: socket.bytesRead, bytes_out: socket.bytesWritten })
    })
    emit('connected', { conn, port: socket.remotePort })
    attach(socket, conn)
  }
  take.next = 0

  if (args.listen !== undefined) {
    server = net.createServer(take)
    server.on('error', (error) => refuse(text(error), EXIT_UNREACHABLE))
    server.listen(args.listen, args.host, () => {
      emit('listening', { listening: server.address().port })
    })
  } else {
    const socket = net.connect(args.connect, args.host)
    const unreachable = (error) => refuse(text(error), EXIT_UNREACHABLE)
    socket.once('error', unreachable)
    socket.once('connect', () => {
      socket.off('error', unreachable)
      take(socket)
    })
  }

  return async function close () {
    server?.close()
    await Promise.all([...sockets].map((socket) => new Promise((resolve) => {
      socket.once('close', resolve)
      socket.end()
    })))
  }
}
