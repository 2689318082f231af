// @libp2p/yamux over TCP, without the rest of libp2p. See README.md for the commands.

import { yamux } from '@libp2p/yamux'
import { readArguments } from './lib/script.mjs'
import { serveDuplex } from './lib/duplex.mjs'
import { SocketConnection, StreamPipe } from './lib/libp2p.mjs'

const args = readArguments()

serveDuplex(args, (socket, hooks) => {
  const factory = yamux(args.options ?? {})()
  const direction = args.connect === undefined ? 'inbound' : 'outbound'
  const muxer = factory.createStreamMuxer(new SocketConnection(socket, direction))
  const abort = muxer.abort.bind(muxer)
  muxer.abort = (error) => {
    hooks.fault(error)
    abort(error)
  }
  muxer.addEventListener('stream', ({ detail: stream }) => {
    hooks.incoming({ pipe: new StreamPipe(stream), name: '', id: stream.streamId })
  })
  return {
    async open () {
      const stream = await muxer.createStream()
      return { pipe: new StreamPipe(stream), name: '', id: stream.streamId }
    },
    async ping () {
      const start = performance.now() // the package itself counts whole milliseconds
      await muxer.ping()
      return performance.now() - start
    },
    leave: () => muxer.close()
  }
}, {
  named: false,
  more: (desk) => ({
    rtt: async (command) => ({ ms: await desk.session(command).session.ping() }),
    goaway: async (command) => { await desk.session(command).session.leave() }
  })
})
