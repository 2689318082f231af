// npm yamux-js over TCP. See README.md for the commands.

import { createRequire } from 'node:module'
import { readArguments } from './lib/script.mjs'
import { NodePipe } from './lib/nodepipe.mjs'
import { serveDuplex } from './lib/duplex.mjs'

const { Client, Server } = createRequire(import.meta.url)('yamux-js')
const args = readArguments()

class StreamPipe extends NodePipe {
  constructor (stream) {
    super(stream)
    stream.on('close', () => this.close(null))
  }

  abort () {
    this.stream.destroy()
  }
}

serveDuplex(args, (socket, hooks) => {
  const config = { enableKeepAlive: false, ...args.options }
  const made = (stream) => ({ pipe: new StreamPipe(stream), name: '', id: stream.ID() })
  const session = args.connect !== undefined
    ? new Client(config)
    : new Server((stream) => hooks.incoming(made(stream)), config)
  session.on('error', (error) => hooks.fault(error))
  if (args.connect !== undefined) session.onStream = (stream) => hooks.incoming(made(stream))
  socket.pipe(session).pipe(socket)
  return { open: () => made(session.open()) }
}, { named: false })
