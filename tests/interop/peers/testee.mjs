// A testee for `polymux conform`: a package whose streams do what their names ask for.
//
//     node testee.mjs PACKAGE --listen PORT
//     node testee.mjs PACKAGE --connect tcp://HOST:PORT
//     node testee.mjs omnistreams --connect ws://HOST:PORT/
//
// PACKAGE is multiplex, libp2p-mplex, nerdbank, omnistreams, libp2p-yamux or yamux-js. The names are
// those of `polymux testee`: echo, sink, source N, slow BPS, never-read, half-close, reset N, open N,
// report; everything else, and every stream of omnistreams, is echoed. Streams of yamux have no names:
// `testee: sink` as their first line does the same. As a client it ends with its connection.

import { refuse } from './lib/script.mjs'

const PACKAGES = ['multiplex', 'libp2p-mplex', 'nerdbank', 'omnistreams', 'libp2p-yamux', 'yamux-js']
const [chosen] = process.argv.splice(2, 1)
if (!PACKAGES.includes(chosen)) refuse(`the package is one of ${PACKAGES.join(' ')}`)
const at = process.argv.indexOf('--connect')
if (at > 0 && /^(tcp|ws):/.test(process.argv[at + 1])) {
  const url = new URL(process.argv[at + 1])
  process.argv.splice(at, 2, '--connect', url.port, '--host', url.hostname)
  if (url.protocol === 'ws:') process.argv.push('--path', url.pathname)
}
process.argv.push('--testee')
await import(`./${chosen}.mjs`)
