// A pipe (see lane.mjs) over a Node Duplex stream. The package's script says when it is over.

export class NodePipe {
  echoPauses = true
  told = null
  over = false
  #waiting = []

  constructor (stream) {
    this.stream = stream
    stream.on('drain', () => this.#wake())
  }

  start (told) {
    this.told = told
    this.stream.on('end', () => told.end())
    this.stream.on('finish', () => told.finish())
    this.stream.on('error', (error) => told.error(error))
    this.stream.on('data', (chunk) => told.data(chunk))
  }

  /** The stream is over: nobody needs to wait for it any more. */
  close (error) {
    this.over = true
    this.#wake()
    this.told?.close(error)
  }

  write (chunk) {
    return this.stream.write(chunk)
  }

  drained () {
    if (this.over) return Promise.resolve()
    return new Promise((resolve) => this.#waiting.push(resolve))
  }

  #wake () {
    for (const resolve of this.#waiting.splice(0)) resolve()
  }

  end () {
    this.stream.end()
  }

  pause () {
    this.stream.pause()
  }

  resume () {
    this.stream.resume()
  }
}
