//go:build yamux

package main

import (
	"net"

	"github.com/hashicorp/yamux"
)

func newSession(conn net.Conn) (dialer, error) {
	session, problem := yamux.Client(conn, yamux.DefaultConfig())
	if problem != nil {
		return nil, problem
	}
	ping := func() error { _, problem := session.Ping(); return problem }
	return streams{func() (stream, error) { return session.OpenStream() }, ping}, nil
}

func serve(conn net.Conn) {
	session, problem := yamux.Server(conn, yamux.DefaultConfig())
	if problem != nil {
		fail(problem)
	}
	serveStreams(func() (stream, error) { return session.AcceptStream() })
}
