// npm nerdbank-streams over TCP, protocol versions 1 to 3. See README.md for the commands.

import cancellation from 'cancellationtoken'
import nerdbank from 'nerdbank-streams'
import { emit, readArguments, refuse, text } from './lib/script.mjs'
import { NodePipe } from './lib/nodepipe.mjs'
import { serveDuplex } from './lib/duplex.mjs'

const CancellationToken = cancellation.default ?? cancellation
const { MultiplexingStream } = nerdbank

const args = readArguments({
  version: { type: 'string', default: '3' },
  window: { type: 'string' }, // default receiving window of every channel
  seeded: { type: 'string' }, // windows of the seeded channels, 102400+500
  // The package never terminates a channel by itself; `both-ended` does what .NET would do.
  dispose: { type: 'string', default: 'both-ended' } // or `never`
})
if (!['both-ended', 'never'].includes(args.dispose)) refuse('--dispose is both-ended or never')

class ChannelPipe extends NodePipe {
  completed = false // the peer's ContentWritingCompleted came
  ending = false // the test ended our half; a termination ends it without a word to the peer
  outcome = undefined // the error, or null, of the termination

  constructor (channel) {
    super(channel.stream)
    this.channel = channel
    // The package pushes end-of-data for a termination too. Only this tells the two apart.
    const onContent = channel.onContent.bind(channel)
    channel.onContent = (buffer) => {
      if (buffer === null) this.completed = true
      onContent(buffer)
    }
    channel.completion.then(() => this.#terminated(null), (error) => this.#terminated(error))
  }

  start (told) {
    let ended = false
    let finished = false
    const tidy = () => {
      if (ended && finished && args.dispose === 'both-ended') this.channel.dispose()
    }
    super.start({
      ...told,
      end: () => {
        ended = true
        if (this.completed) told.end()
        if (this.outcome !== undefined) this.close(this.outcome)
        else tidy()
      },
      finish: () => {
        finished = true
        if (this.ending) told.finish()
        tidy()
      }
    })
  }

  end () {
    this.ending = true
    super.end()
  }

  // What came before the termination can still be read: it is over when that is done,
  // or at once if the test has stopped reading.
  #terminated (error) {
    this.outcome = error
    if (this.stream.readableEnded || this.stream.isPaused()) this.close(error)
  }

  abort (message) {
    this.channel.dispose(message === undefined ? undefined : new Error(message))
  }
}

/** Offers and acceptances that wait, by name, each with its cancel function. */
class Pending {
  #waiting = { offer: [], accept: [] }

  add (what, name) {
    const { cancel, token } = CancellationToken.create()
    const entry = { name, cancel }
    this.#waiting[what].push(entry)
    return { token, done: () => this.#drop(what, entry) }
  }

  #drop (what, entry) {
    this.#waiting[what] = this.#waiting[what].filter((other) => other !== entry)
  }

  cancel (what, name, reason) {
    const entry = this.#waiting[what].findLast((other) => other.name === name)
    if (entry === undefined) throw new Error(`no ${what} of ${JSON.stringify(name)} is waiting`)
    this.#drop(what, entry)
    entry.cancel(reason)
  }
}

const made = (channel) => ({ pipe: new ChannelPipe(channel), name: channel.name, id: channel.id })
const windowOf = (command) => {
  return command.window === undefined ? undefined : { channelReceivingWindowSize: command.window }
}

class Session {
  pending = new Pending()

  constructor (mux, hooks) {
    this.mux = mux
    this.hooks = hooks
    mux.on('channelOffered', (offer) => this.#offered(offer))
    mux.completion.catch((error) => {
      hooks.fault(error)
      if (args.testee) hooks.hangUp() // the package leaves this to its user
    })
  }

  #offered ({ id, name, isAccepted }) {
    const way = this.hooks.desk.way(name)
    if (!(way.quiet ?? way.incoming === 'sink')) {
      emit('offered', { conn: this.hooks.conn, id, name, accepted: isAccepted })
    }
    if (isAccepted) return
    if (way.incoming === 'reject') this.mux.rejectChannel(id)
    else if (way.incoming !== 'wait') this.accept({ id, window: way.window }, way)
    // A waiting offer that its sender withdraws with an error text rejects a promise of a
    // channel that we have not got; the process shall not die of it.
    else this.mux.remotelyOfferedOpenChannels[id].completion.catch(() => {})
  }

  /** Accept by id, an anonymous or seeded channel too. */
  accept (command, way = { incoming: 'hold' }) {
    const channel = this.mux.acceptChannel(command.id, windowOf(command))
    return this.hooks.incoming(made(channel), way)
  }

  async acceptByName (command, way) {
    const { token, done } = this.pending.add('accept', command.name)
    try {
      const channel = await this.mux.acceptChannelAsync(command.name, windowOf(command), token)
      return this.hooks.incoming(made(channel), way)
    } finally {
      done()
    }
  }

  /** Offer a channel and wait until it is accepted. */
  async open (name, command) {
    const { token, done } = this.pending.add('offer', name)
    try {
      const accepted = this.mux.offerChannelAsync(name, windowOf(command), token)
      const id = this.mux.lastOfferedChannelId
      if (command.do === 'offer') emit('offering', { conn: this.hooks.conn, name, id })
      return made(await accepted)
    } catch (error) {
      throw new Error(`the offer was not accepted: ${text(error)}`)
    } finally {
      done()
    }
  }

  create (command) {
    return made(this.mux.createChannel(windowOf(command)))
  }
}

async function attach (socket, hooks) {
  const options = { protocolMajorVersion: Number(args.version), ...args.options }
  if (args.window !== undefined) options.defaultChannelReceivingWindowSize = Number(args.window)
  if (args.seeded !== undefined) {
    options.seededChannels = args.seeded.split('+')
      .map((size) => ({ channelReceivingWindowSize: Number(size) }))
  }
  let mux = null
  // After a TCP reset the package waits for an `end` that does not come.
  socket.on('close', () => {
    if (mux !== null && !mux.isDisposed) mux.dispose()
  })
  mux = await MultiplexingStream.CreateAsync(socket, options)
  return new Session(mux, hooks)
}

serveDuplex(args, attach, {
  modes: ['echo', 'hold', 'stall', 'late', 'sink', 'reject', 'wait'],
  more: (desk) => {
    const session = (command) => desk.session(command).session
    return {
      offer: async (command) => (await desk.open(command, command.name)).status(),

      // An anonymous channel; it exists at once, its content waits for the acceptance.
      create: async (command) => {
        const { session, conn } = desk.session(command)
        const lane = await desk.take(conn, session.create(command), command)
        return lane.status()
      },

      accept: async (command) => {
        const way = { ...command, incoming: command.incoming ?? 'hold' }
        const { accept, acceptByName } = Session.prototype
        const how = command.id === undefined ? acceptByName : accept
        return (await how.call(session(command), command, way)).status()
      },

      reject: (command) => { session(command).mux.rejectChannel(command.id) },

      cancel: (command) => {
        session(command).pending.cancel(command.what ?? 'offer', command.name, command.reason)
      }
    }
  }
})
