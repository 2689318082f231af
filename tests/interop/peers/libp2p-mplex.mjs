// @libp2p/mplex over TCP, without the rest of libp2p. See README.md for the commands.

import { mplex } from '@libp2p/mplex'
import { readArguments } from './lib/script.mjs'
import { serveDuplex } from './lib/duplex.mjs'
import { SocketConnection, StreamPipe } from './lib/libp2p.mjs'

const args = readArguments()

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
    hooks.incoming({ pipe: new StreamPipe(stream), name, id: stream.streamId })
  })
  return {
    async open () {
      const stream = await muxer.createStream()
      return { pipe: new StreamPipe(stream), name: stream.id, id: stream.streamId }
    }
  }
})
