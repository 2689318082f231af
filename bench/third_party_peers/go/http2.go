//go:build http2

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"golang.org/x/net/http2"
)

const window = 1 << 20 // of a stream, as in polymux's Nerdbank; the connection has 16 of them

type requests struct {
	connection *http2.ClientConn
}

type zeros struct{ left, size int }

func (z *zeros) Read(into []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := len(into)
	for _, limit := range []int{z.size, z.left} {
		if n > limit {
			n = limit
		}
	}
	z.left -= n
	return n, nil
}

func (r requests) post(path string, body io.Reader, size int) error {
	made, problem := http.NewRequest("POST", "http://peer"+path, body)
	if problem != nil {
		return problem
	}
	made.ContentLength = int64(size)
	answer, problem := r.connection.RoundTrip(made)
	if problem != nil {
		return problem
	}
	defer answer.Body.Close()
	read, problem := io.Copy(io.Discard, answer.Body)
	if problem == nil && path == "/echo" && read != int64(size) {
		return fmt.Errorf("%d bytes of %d came back", read, size)
	}
	return problem
}

func (r requests) bulk(byteCount, size int) error {
	return r.post("/read", &zeros{byteCount / size * size, size}, byteCount/size*size)
}

func (r requests) opening() error { return r.post("/read", http.NoBody, 0) }

func (r requests) request(size int) error {
	return r.post("/echo", bytes.NewReader(make([]byte, size)), size)
}

func (r requests) pinger() (func() error, error) {
	return func() error { return r.connection.Ping(context.Background()) }, nil
}

func dial(conn net.Conn) (dialer, error) {
	transport := &http2.Transport{AllowHTTP: true, DisableCompression: true}
	connection, problem := transport.NewClientConn(conn)
	return requests{connection}, problem
}

func serve(conn net.Conn) {
	server := &http2.Server{
		MaxConcurrentStreams:         10000,
		MaxUploadBufferPerStream:     window,
		MaxUploadBufferPerConnection: 16 * window,
	}
	server.ServeConn(conn, &http2.ServeConnOpts{Handler: http.HandlerFunc(answer)})
}

func answer(out http.ResponseWriter, asked *http.Request) {
	if asked.URL.Path == "/echo" {
		io.Copy(out, asked.Body)
	} else {
		io.Copy(io.Discard, asked.Body)
	}
}
