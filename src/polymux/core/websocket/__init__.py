"""WebSocket: frames, the HTTP upgrade, and the layer that carries message protocols."""
