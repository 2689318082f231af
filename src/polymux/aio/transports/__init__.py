"""Transports other than plain sockets: memory, standard streams, child processes, WebSocket."""
