// What a stream of a testee does, by its name.

import { sleep } from './script.mjs'

const FILLER = Buffer.alloc(4096, 'z')
const PIECES_PER_SECOND = 20

async function fill (lane, size) {
  for (let left = size; left > 0; left -= FILLER.length) {
    if (!await lane.write(FILLER.subarray(0, Math.min(left, FILLER.length)))) return
  }
}

/** Echo at most `rate` bytes a second. */
function slow (lane, rate) {
  const size = Math.max(1, Math.floor(rate / PIECES_PER_SECOND))
  let work = Promise.resolve()
  lane.start({
    data: (chunk) => {
      const copy = Buffer.from(chunk)
      work = work.then(async () => {
        for (let at = 0; at < copy.length && !lane.closed; at += size) {
          await lane.write(copy.subarray(at, at + size))
          await sleep(1000 / PIECES_PER_SECOND)
        }
      })
    },
    end: () => { work.then(() => lane.end()) }
  })
}

/**
 * Do what the name of the stream asks for. `open` opens another stream of the session; `endings`
 * are the lines that `report` sends.
 */
export async function obeyName (lane, open, endings) {
  const [word, number] = lane.name.split(' ')
  lane.until(() => lane.closed).then(() => {
    endings.push(`${word}: ${lane.ended ? 'ended' : 'aborted'}`)
  })
  const count = Number(number ?? 0)
  switch (Number.isSafeInteger(count) ? word : 'echo') {
    case 'sink':
      lane.start({ end: () => lane.end() })
      break
    case 'source':
      lane.start({})
      await fill(lane, count)
      await lane.end()
      break
    case 'slow':
      slow(lane, count)
      break
    case 'never-read':
      lane.held = true
      lane.start({})
      break
    case 'half-close':
      lane.start({})
      await lane.end()
      break
    case 'reset':
      lane.start({})
      await fill(lane, count)
      lane.abort()
      break
    case 'open':
      lane.start({})
      await Promise.allSettled(Array.from({ length: count }, () => open()))
      break
    case 'report':
      lane.start({})
      await lane.write(Buffer.from(endings.join('\n') + '\n'))
      await lane.end()
      break
    default:
      lane.echo()
  }
}

const PREFIX = 'testee: '

/** As `obeyName` for streams without names: the command is the first line that comes on them. */
export function obeyFirstLine (lane, open, endings) {
  const { pipe } = lane
  let told = null
  const begin = () => {
    if (told !== null) return
    pipe.start = (handlers) => { told = handlers } // it is started already
    obeyName(lane, open, endings).catch((error) => lane.tell('error', { message: String(error) }))
  }
  pipe.start({
    data: (chunk) => {
      let rest = chunk
      if (told === null) {
        const text = Buffer.from(chunk).toString('latin1')
        const end = text.indexOf('\n')
        if (text.startsWith(PREFIX) && end >= 0) {
          lane.name = text.slice(PREFIX.length, end)
          rest = chunk.subarray(end + 1)
        }
        begin()
      }
      if (rest.length > 0) told.data(rest)
    },
    end: () => { begin(); told.end() },
    finish: () => told?.finish(),
    error: (error) => { begin(); told.error(error) },
    close: (error) => { begin(); told.close(error) }
  })
}
