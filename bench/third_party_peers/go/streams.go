//go:build yamux || smux

package main

import (
	"io"
	"net"
)

// A stream of either library. After its own Close a stream reads nothing more, so the end that opened
// it closes it last.
type stream = io.ReadWriteCloser

type streams struct {
	open func() (stream, error)
	ping func() error // the protocol's own; nil if it has none
}

func (s streams) bulk(byteCount, size int) error {
	opened, problem := s.open()
	if problem != nil {
		return problem
	}
	data := make([]byte, size)
	for sent := 0; sent < byteCount; sent += size {
		if _, problem := opened.Write(data); problem != nil {
			return problem
		}
	}
	if _, problem := opened.Read(data[:1]); problem != nil {
		return problem
	}
	return opened.Close()
}

func (s streams) opening() error { return s.bulk(0, 1) }

func (s streams) request(size int) error {
	opened, problem := s.open()
	if problem != nil {
		return problem
	}
	data := make([]byte, size)
	if _, problem := opened.Write(data); problem != nil {
		return problem
	}
	if _, problem := io.ReadFull(opened, data); problem != nil {
		return problem
	}
	return opened.Close()
}

func (s streams) pinger() (func() error, error) {
	if s.ping != nil {
		return s.ping, nil
	}
	opened, problem := s.open()
	if problem != nil {
		return nil, problem
	}
	data := make([]byte, 16)
	ping := func() error {
		if _, problem := opened.Write(data); problem != nil {
			return problem
		}
		_, problem := io.ReadFull(opened, data)
		return problem
	}
	return ping, ping() // once, so that the other end has accepted it
}

func serveStreams(accept func() (stream, error)) {
	for {
		accepted, problem := accept()
		if problem != nil {
			return
		}
		go treat(accepted)
	}
}

func treat(accepted stream) {
	defer accepted.Close()
	buffer := make([]byte, 65536)
	echo, bytes := mode.get()
	for left := bytes; !echo && left > 0; {
		n, problem := accepted.Read(buffer)
		if problem != nil {
			return
		}
		left -= n
	}
	if !echo {
		accepted.Write(buffer[:1])
	}
	for { // until the other end closes
		n, problem := accepted.Read(buffer)
		if problem != nil {
			return
		}
		if _, problem = accepted.Write(buffer[:n]); problem != nil {
			return
		}
	}
}

func dial(conn net.Conn) (dialer, error) { return newSession(conn) }
