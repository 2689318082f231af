// One end of a peer in Go, built with the tag of one library: yamux, smux or http2. It speaks the
// lines of ../link.py; the dialing end has the commands bulk, openings, requests and pings. Nothing is
// counted or checked that the work does not need.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// The dialing end of a session. Each method is one unit of work on a stream of its own.
type dialer interface {
	bulk(byteCount, size int) error // send, and wait until the other end has read all
	opening() error                 // open and close a stream that the other end closes too
	request(size int) error         // send `size` bytes, and read as many
	pinger() (func() error, error)  // returns a function that does one round trip
}

type order struct {
	Do        string `json:"do"`
	ByteCount int    `json:"byte_count"`
	Size      int    `json:"size"`
	Streams   int    `json:"streams"`
	Count     int    `json:"count"`
	Flight    int    `json:"flight"`
	Load      int    `json:"load"`
	Mode      string `json:"mode"`
}

// What the accepting end does with a new stream: "echo", or "read" so many bytes and answer with one.
type treatment struct {
	sync.Mutex
	echo  bool
	bytes int
}

var mode treatment

func (t *treatment) set(kind string, bytes int) {
	t.Lock()
	defer t.Unlock()
	t.echo, t.bytes = kind == "echo", bytes
}

func (t *treatment) get() (bool, int) {
	t.Lock()
	defer t.Unlock()
	return t.echo, t.bytes
}

// inFlight runs `work` `count` times, `flight` at a time, and returns the seconds.
func inFlight(count, flight int, work func() error) (float64, error) {
	failures := make(chan error, flight)
	began := time.Now()
	for i := 0; i < flight; i++ {
		go func() {
			for n := 0; n < count/flight; n++ {
				if problem := work(); problem != nil {
					failures <- problem
					return
				}
			}
			failures <- nil
		}()
	}
	var failed error
	for i := 0; i < flight; i++ {
		if problem := <-failures; problem != nil {
			failed = problem
		}
	}
	return time.Since(began).Seconds(), failed
}

// pings returns the seconds of up to `count` round trips, beside `load` bytes of bulk data (0: none)
// and no longer than these take.
func pings(session dialer, ping func() error, count, load int) ([]float64, error) {
	sent := make(chan error, 1)
	if load > 0 {
		go func() { sent <- session.bulk(load, 65536) }()
	}
	found := []float64{}
	for len(found) < count {
		began := time.Now()
		if problem := ping(); problem != nil {
			return nil, problem
		}
		found = append(found, time.Since(began).Seconds())
		select {
		case problem := <-sent:
			return found, problem
		default:
		}
	}
	if load > 0 {
		return found, <-sent
	}
	return found, nil
}

func obey(session dialer, ping *func() error, o order) (interface{}, error) {
	switch o.Do {
	case "mode":
		mode.set(o.Mode, o.ByteCount)
		return true, nil
	case "bulk":
		each := o.ByteCount / o.Streams
		return inFlight(o.Streams, o.Streams, func() error { return session.bulk(each, o.Size) })
	case "openings":
		return inFlight(o.Count, o.Flight, session.opening)
	case "requests":
		return inFlight(o.Count, o.Flight, func() error { return session.request(o.Size) })
	case "open_ping":
		opened, problem := session.pinger()
		*ping = opened
		return true, problem
	case "pings":
		return pings(session, *ping, o.Count, o.Load)
	}
	return nil, fmt.Errorf("no command %q", o.Do)
}

func say(fields map[string]interface{}) {
	line, _ := json.Marshal(fields)
	os.Stdout.Write(append(line, '\n'))
}

func fail(problem error) {
	fmt.Fprintln(os.Stderr, problem)
	os.Exit(1)
}

func main() {
	var session dialer
	if os.Args[1] == "listen" {
		listener, problem := net.Listen("tcp", "127.0.0.1:0")
		if problem != nil {
			fail(problem)
		}
		say(map[string]interface{}{"port": listener.Addr().(*net.TCPAddr).Port})
		conn, problem := listener.Accept()
		if problem != nil {
			fail(problem)
		}
		go serve(conn)
	} else {
		port, _ := strconv.Atoi(os.Args[2])
		conn, problem := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if problem != nil {
			fail(problem)
		}
		if session, problem = dial(conn); problem != nil {
			fail(problem)
		}
		say(map[string]interface{}{"ready": true})
	}
	var ping func() error
	lines := bufio.NewReader(os.Stdin)
	for {
		line, problem := lines.ReadBytes('\n')
		if problem != nil {
			os.Exit(0)
		}
		var o order
		if problem = json.Unmarshal(line, &o); problem != nil {
			fail(problem)
		}
		found, problem := obey(session, &ping, o)
		if problem != nil {
			say(map[string]interface{}{"error": problem.Error()})
		} else {
			say(map[string]interface{}{"found": found})
		}
	}
}
