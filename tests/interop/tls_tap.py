"""A TCP relay that notes what passes, for peers of other TLS implementations."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

Flights = list[tuple[int, bytes]]


class Tap:
    """Relays one connection after another from a free port to another port.

    `connections` has the flights of each, so far: (side, bytes) in the order of arrival.
    """

    def __init__(self, upstream_port: int) -> None:
        self.connections: list[Flights] = []
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._ended: list[threading.Event] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = connect(self._upstream_port)
            flights: Flights = []
            ended = threading.Event()
            self._ended.append(ended)
            self.connections.append(flights)
            pumps = [
                threading.Thread(target=self._pump, args=(0, client, server, flights)),
                threading.Thread(target=self._pump, args=(1, server, client, flights)),
            ]
            for pump in pumps:
                pump.daemon = True
                pump.start()
            for pump in pumps:
                pump.join()
            client.close()
            server.close()
            ended.set()

    def whole(self, number: int, seconds: float = 60.0) -> Flights:
        """The flights of a connection, after both sides have closed it.

        What a peer sends last, TLS's close_notify, may pass after the peer's process has ended.
        """
        assert self._ended[number].wait(seconds), f"connection {number} is still open"
        return self.connections[number]

    def _pump(
        self,
        side: int,
        source: socket.socket,
        target: socket.socket,
        flights: list[tuple[int, bytes]],
    ) -> None:
        try:
            while data := source.recv(65536):
                with self._lock:
                    flights.append((side, data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


def connect(port: int, seconds: float = 60.0) -> socket.socket:
    """Connect to a port of this machine as soon as it is listened on."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=seconds)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
