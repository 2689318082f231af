"""A TCP relay that notes what passes, for peers of other TLS implementations."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

Flights = list[tuple[int, bytes]]
PATIENCE_SECONDS = 60.0  # for other programs; a loaded machine may take some


class Tap:
    """Relays one connection after another from a free port to a Unix socket.

    A server that listens on a socket of the file system needs no free port, which another program
    could take before it does. `connections` has the flights of each connection, so far: (side,
    bytes) in the order of arrival.
    """

    def __init__(self, upstream: str) -> None:
        self.connections: list[Flights] = []
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._change = threading.Condition()
        self._ended = 0  # connections that both sides have closed
        self._problem: OSError | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = connect(self._upstream)
            except OSError as problem:
                client.close()
                with self._change:
                    self._problem = problem
                    self._change.notify_all()
                return
            flights: Flights = []
            with self._change:
                self.connections.append(flights)
            pumps = [
                threading.Thread(target=self._pump, args=(0, client, server, flights), daemon=True),
                threading.Thread(target=self._pump, args=(1, server, client, flights), daemon=True),
            ]
            for pump in pumps:
                pump.start()
            for pump in pumps:
                pump.join()
            client.close()
            server.close()
            with self._change:
                self._ended += 1
                self._change.notify_all()

    def whole(self, number: int) -> Flights:
        """The flights of a connection, after both sides have closed it.

        What a peer sends last, TLS's close_notify, may pass after the peer's process has ended.
        """
        with self._change:
            done = self._change.wait_for(
                lambda: self._ended > number or self._problem is not None, PATIENCE_SECONDS
            )
            assert self._problem is None, f"nothing listens on {self._upstream}: {self._problem}"
            assert done, f"connection {number} is still open"
            return self.connections[number]

    def _pump(
        self, side: int, source: socket.socket, target: socket.socket, flights: Flights
    ) -> None:
        try:
            while data := source.recv(65536):
                with self._change:
                    flights.append((side, data))
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept` in the other thread
        self._listener.close()


def connect(path: str) -> socket.socket:
    """Connect to a Unix socket as soon as it is listened on."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        channel = socket.socket(socket.AF_UNIX)
        try:
            channel.connect(path)
            return channel
        except OSError:
            channel.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
