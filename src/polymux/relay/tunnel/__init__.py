"""A tunnel: TCP connections forwarded over the streams of one session.

The client listens on local ports (and as a SOCKS5 proxy), the server connects to targets that it
allows; or the server listens, if it allows that, and the client connects. Every forwarded
connection is a stream of its own, under its own flow control.
"""
