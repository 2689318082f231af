"""The sending process of `collect`: sends prepared bytes to a port as fast as possible.

Each JSON line on standard input is a command: the port, the first bytes, the bytes to repeat and
how often, and the last bytes. A line is printed when the peer has answered or ended.
"""

from __future__ import annotations

import json
import socket
import sys


def send_all(order: dict[str, object]) -> None:
    opening, body, closing = (bytes.fromhex(str(order[name])) for name in ("open", "body", "end"))
    with socket.create_connection(("127.0.0.1", int(str(order["port"])))) as peer:
        peer.sendall(opening)
        for _ in range(int(str(order["times"]))):
            peer.sendall(body)
        peer.sendall(closing)
        if order["half"]:
            peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1), "the peer went away without an answer"


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        send_all(json.loads(line))
        print("done", flush=True)


if __name__ == "__main__":
    main()
