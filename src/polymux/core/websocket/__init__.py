"""The WebSocket layer: its frames, its HTTP handshake, and message protocols carried inside it."""
