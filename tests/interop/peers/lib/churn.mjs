// Open, write, end and destroy streams of npm multiplex at random, on either side of a session, so
// that ids are freed and used again while frames cross.

/** Numbers in [0, 1) that depend on the seed alone. */
function chance (seed) {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b79f5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296
  }
}

export class Churn {
  #live = new Set()
  #ended = new WeakSet()
  opened = 0
  taken = 0

  constructor (plex, seed) {
    this.plex = plex
    this.random = chance(seed)
  }

  take (channel) {
    this.taken++
    this.#follow(channel)
  }

  #follow (channel) {
    this.#live.add(channel)
    channel.on('error', () => {})
    channel.on('finalize', () => this.#live.delete(channel))
    channel.resume()
  }

  #end (channel) {
    if (this.#ended.has(channel)) return
    this.#ended.add(channel)
    channel.end()
  }

  #act () {
    const pick = this.random()
    const channels = [...this.#live]
    if (channels.length === 0 || (pick < 0.25 && channels.length < 8)) {
      this.opened++
      this.#follow(this.plex.createStream())
      return
    }
    const channel = channels[Math.floor(this.random() * channels.length)]
    if (pick < 0.6) {
      if (!this.#ended.has(channel)) channel.write(Buffer.alloc(Math.floor(this.random() * 2000)))
    } else if (pick < 0.8) {
      this.#end(channel)
    } else {
      channel.destroy(pick < 0.9 ? undefined : new Error('enough'))
    }
  }

  /** `steps` random moves, some in one turn of the event loop; then every stream is ended. */
  async run (steps) {
    for (let left = steps; left > 0; left--) {
      this.#act()
      if (this.random() < 0.4) await new Promise((resolve) => setImmediate(resolve))
      if (this.random() < 0.02) await new Promise((resolve) => setTimeout(resolve, 1))
    }
    for (const channel of this.#live) this.#end(channel)
    await new Promise((resolve) => setTimeout(resolve, 20))
    return { opened: this.opened, taken: this.taken }
  }
}
