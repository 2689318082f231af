// npm multiplex over TCP. See README.md for the commands.

import createMultiplex from 'multiplex'
import { readArguments } from './lib/script.mjs'
import { NodePipe } from './lib/nodepipe.mjs'
import { serveDuplex } from './lib/duplex.mjs'
import { Churn } from './lib/churn.mjs'

const args = readArguments({
  // The package's own default answers a Close with its own Close at once.
  'half-open': { type: 'string', default: 'true' }
})

class ChannelPipe extends NodePipe {
  constructor (channel) {
    super(channel)
    let failure = null
    channel.on('error', (error) => { failure = error })
    // `finalize` is the package's word for "over", after both ends and after a destroy. It comes
    // from inside the package's own listener of `end`: ours shall hear of the end first.
    channel.on('finalize', () => queueMicrotask(() => this.close(failure)))
  }

  abort (message) {
    this.stream.destroy(message === undefined ? undefined : new Error(message))
  }
}

serveDuplex(args, (socket, hooks) => {
  const made = (channel) => ({ pipe: new ChannelPipe(channel), name: channel.name, id: channel.channel })
  const options = { halfOpen: args['half-open'] === 'true', ...args.options }
  let churn = null // once it has begun, it has all further streams of the session
  const plex = createMultiplex(options, (channel) => {
    if (churn === null) hooks.incoming(made(channel))
    else churn.take(channel)
  })
  plex.on('error', (error) => {
    hooks.fault(error)
    socket.destroy()
  })
  socket.on('close', () => plex.destroy())
  socket.pipe(plex).pipe(socket)
  return {
    open: (name) => made(plex.createStream(name)),
    churn: ({ seed, steps }) => {
      churn = new Churn(plex, seed)
      return churn.run(steps)
    }
  }
}, { more: (desk) => ({ churn: (command) => desk.session(command).session.churn(command) }) })
