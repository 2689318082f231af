//go:build smux

package main

import (
	"net"

	"github.com/xtaci/smux"
)

// Version 2 of its protocol has windows; version 1 lets one stream hold up all.
func config() *smux.Config {
	chosen := smux.DefaultConfig()
	chosen.Version = 2
	return chosen
}

func newSession(conn net.Conn) (dialer, error) {
	session, problem := smux.Client(conn, config())
	if problem != nil {
		return nil, problem
	}
	return streams{func() (stream, error) { return session.OpenStream() }, nil}, nil
}

func serve(conn net.Conn) {
	session, problem := smux.Server(conn, config())
	if problem != nil {
		fail(problem)
	}
	serveStreams(func() (stream, error) { return session.AcceptStream() })
}
