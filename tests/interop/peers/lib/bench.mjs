// The commands a benchmark uses: no digests, no events, only counts and seconds.

import { bytes } from './bytes.mjs'
import { secondsSince, whole } from './script.mjs'

/** Share `total` as evenly as whole numbers allow. */
export function shares (total, parts) {
  return Array.from({ length: parts }, (_, i) => {
    return Math.floor(total / parts) + (i < total % parts ? 1 : 0)
  })
}

/** Run `count` times `act(index)`, `inFlight` at a time. */
export async function pool (count, inFlight, act) {
  let next = 0
  await Promise.all(Array.from({ length: Math.min(count, inFlight) }, async () => {
    while (next < count) await act(next++)
  }))
}

/**
 * Wait until `sink` holds as much as the command asks for, and report it. The clock runs from
 * the first byte (or first end) to the one that made it enough.
 */
export function sunk (sink, command) {
  const wanted = {
    bytes: whole(command, 'bytes', 0),
    messages: whole(command, 'messages', 0),
    streams: whole(command, 'streams', 0)
  }
  if (sink.watch !== null) throw new Error('a sink command is waiting already')
  return new Promise((resolve) => {
    const watch = () => {
      for (const unit in wanted) if (sink[unit] < wanted[unit]) return
      sink.watch = null
      resolve({
        bytes: sink.bytes,
        messages: sink.messages,
        streams: sink.streams,
        seconds: sink.first === null ? 0 : secondsSince(sink.first)
      })
    }
    sink.watch = watch
    watch()
  })
}

export function benchCommands (desk) {
  return {
    // Send BYTES in writes of SIZE, spread over STREAMS; `seconds_sent` ends with our own
    // end, `seconds` when the other side has ended too (unless "wait" is false).
    blast: async (command) => {
      const total = whole(command, 'bytes')
      const size = whole(command, 'size', 65536)
      if (size === 0) throw new Error('"size" must be at least 1')
      const count = whole(command, 'streams', 1)
      const message = bytes(whole(command, 'seed', 0), 0, size)
      const lanes = []
      for (let i = 0; i < count; i++) {
        lanes.push(await desk.open(command, `blast-${i}`, true))
      }
      const start = performance.now()
      let messages = 0
      await Promise.all(shares(total, count).map(async (share, i) => {
        const { pipe } = lanes[i]
        for (let left = share; left > 0 && !lanes[i].closed; left -= size) {
          messages++
          const room = pipe.write(left < size ? message.subarray(0, left) : message)
          if (room === false) await pipe.drained()
        }
        await lanes[i].end()
      }))
      const sent = secondsSince(start)
      if (command.wait ?? true) {
        await Promise.all(lanes.map((lane) => lane.until(() => lane.ended)))
        const lost = lanes.find((lane) => !lane.ended)
        if (lost) throw new Error(`stream ${lost.name} closed early: ${lost.error ?? 'no reason given'}`)
      }
      return { bytes: total, messages, streams: count, seconds_sent: sent, seconds: secondsSince(start) }
    },

    sink: (command) => {
      if (desk.way('').incoming !== 'sink') desk.setWay({ incoming: 'sink' })
      return sunk(desk.sink, command)
    },

    // Open a stream, end it, wait until the other side has ended it too and it is over.
    openclose: async (command) => {
      const count = whole(command, 'count')
      const inFlight = Math.max(1, whole(command, 'in_flight', 1))
      const start = performance.now()
      await pool(count, inFlight, async (index) => {
        const lane = await desk.open(command, `stream-${index}`, true)
        await lane.end()
        await lane.until(() => false)
        if (!lane.ended) throw new Error(`stream ${index} closed early: ${lane.error ?? 'no reason given'}`)
      })
      return { count, in_flight: inFlight, seconds: secondsSince(start) }
    }
  }
}
