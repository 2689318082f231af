"""What happens on a connection before the session: the token, the WebSocket upgrade; memory."""
