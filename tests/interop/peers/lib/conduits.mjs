// The two ends of an omnistreams stream as a test sees them: a Writer, which opened it and
// sends, and a Reader, which gives credit and receives.

import { emit } from './script.mjs'
import { Tally, bytes, sha256 } from './bytes.mjs'

export class Conduit {
  static #next = 0

  number = Conduit.#next++
  ended = false
  terminated = false
  aborted = false // by a command of the test
  #watchers = []

  constructor ({ conn, id, metadata, quiet }) {
    Object.assign(this, { conn, id, metadata, quiet })
    this.name = metadata.toString()
  }

  get over () {
    return this.ended || this.terminated
  }

  tell (event, fields = {}) {
    if (this.quiet) return
    emit(event, { conn: this.conn, stream: this.number, name: this.name, id: this.id, ...fields })
  }

  /** Wait until `test()` holds; the end of the stream ends the wait too. */
  async until (test) {
    while (!test() && !this.over) {
      await new Promise((resolve) => this.#watchers.push(resolve))
    }
  }

  changed () {
    if (this.#watchers.length === 0) return
    const watchers = this.#watchers
    this.#watchers = []
    for (const wake of watchers) wake()
  }

  status () {
    return {
      conn: this.conn,
      stream: this.number,
      name: this.name,
      metadata_hex: this.metadata.toString('hex'),
      id: this.id,
      ended: this.ended,
      terminated: this.terminated,
      aborted: this.aborted
    }
  }
}

export class Writer extends Conduit {
  credit = 0
  granted = 0
  messages = 0
  sent = 0

  constructor (consumer, fields) {
    super(fields)
    this.consumer = consumer
    consumer.onRequest((amount) => {
      this.credit += amount
      this.granted += amount
      this.onCredit?.(amount)
      this.changed()
    })
    consumer.onTermination(() => {
      this.terminated = true
      this.tell('terminated', this.status())
      this.onTerminated?.()
      this.changed()
    })
  }

  status () {
    const { credit, granted, messages, sent } = this
    return { ...super.status(), origin: 'local', credit, granted, messages, sent }
  }

  /** Send one message now, whatever the credit is. */
  put (data) {
    this.credit--
    this.messages++
    this.sent += data.byteLength
    this.consumer.write(data)
  }

  /** Send one message as soon as it was asked for; false if the stream was over before. */
  async send (data) {
    if (this.credit <= 0) await this.until(() => this.credit > 0)
    if (this.over) return false
    this.put(data)
    return true
  }

  /** `count` messages that together are the sequence of `seed`. */
  async sendMany (count, size, seed) {
    for (let i = 0; i < count; i++) {
      if (!await this.send(bytes(seed, i * size, size))) return false
    }
    return true
  }

  end () {
    if (this.over) return
    this.ended = true
    this.consumer.end()
    this.changed()
  }

  cancel () {
    this.aborted = true
    this.consumer.terminate()
  }
}

const MOST = 255 // what one request can carry; the package lets a greater number wrap

export class Reader extends Conduit {
  granted = 0
  #window = 0
  #eaten = 0

  constructor (producer, fields) {
    super(fields)
    this.producer = producer
    this.tally = new Tally(!this.quiet)
    producer.onData((data) => this.#received(data ?? new Uint8Array(0)))
    producer.onEnd(() => {
      this.ended = true
      this.tell('end', this.status())
      this.onEnd?.()
      this.changed()
    })
    producer.onTermination(() => {
      this.terminated = true
      this.tell('terminated', this.status())
      this.changed()
    })
  }

  status () {
    return {
      ...super.status(),
      origin: 'remote',
      granted: this.granted,
      messages: this.tally.chunks,
      received: this.tally.bytes,
      sha256: this.tally.sha256
    }
  }

  #received (data) {
    this.tally.add(data)
    if (this.showMessages) {
      this.tell('message', {
        index: this.tally.chunks - 1,
        bytes: data.byteLength,
        sha256: sha256(data),
        hex: data.byteLength <= 64 ? Buffer.from(data).toString('hex') : null
      })
    }
    this.onData?.(data)
    if (this.#window > 0 && ++this.#eaten >= this.#window / 2) {
      this.request(this.#eaten)
      this.#eaten = 0
    }
    this.changed()
  }

  /** Ask for messages; amounts above 255 go out as several requests. */
  request (amount) {
    for (let left = amount; left > 0; left -= MOST) this.requestRaw(Math.min(left, MOST))
  }

  /** One request with this very number, as the package sends it. */
  requestRaw (amount) {
    this.granted += amount
    this.producer.request(amount)
  }

  /** Keep about `window` messages on order. */
  keep (window) {
    this.#window = window
    this.request(window)
  }

  cancel () {
    this.aborted = true
    this.producer.terminate()
  }
}
