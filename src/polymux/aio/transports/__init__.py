"""What a session runs on besides a socket: memory, standard streams, child processes, WebSocket."""
