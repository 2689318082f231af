// hashicorp/yamux over TCP, driven by JSON lines. See ../README.md for the commands.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

type command map[string]interface{}

func (c command) text(key string) string { s, _ := c[key].(string); return s }

func (c command) number(key string, otherwise int) int {
	if f, ok := c[key].(float64); ok {
		return int(f)
	}
	return otherwise
}

var (
	saying  sync.Mutex
	mutex   sync.Mutex
	session *yamux.Session
	lanes   = map[int]*lane{}
	last    int
	mode    = command{"incoming": "echo"}
)

func say(fields map[string]interface{}) {
	saying.Lock()
	defer saying.Unlock()
	line, _ := json.Marshal(fields)
	os.Stdout.Write(append(line, '\n'))
}

func contents(seed, size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(seed*31 + i*7 + i>>8)
	}
	return data
}

// A lane is a stream with what was read from it.
type lane struct {
	sync.Mutex
	*yamux.Stream
	number   int
	origin   string
	received int
	sum      hash.Hash
	ended    bool
	failure  string
	changed  *sync.Cond
}

func add(stream *yamux.Stream, origin string) *lane {
	mutex.Lock()
	defer mutex.Unlock()
	last++
	made := &lane{Stream: stream, number: last, origin: origin, sum: sha256.New()}
	made.changed = sync.NewCond(made)
	lanes[last] = made
	return made
}

func (l *lane) status() map[string]interface{} {
	l.Lock()
	defer l.Unlock()
	var failure interface{}
	if l.failure != "" {
		failure = l.failure
	}
	return map[string]interface{}{
		"stream": l.number, "id": l.StreamID(), "origin": l.origin, "received": l.received,
		"sha256": hex.EncodeToString(l.sum.Sum(nil)), "ended": l.ended, "error": failure,
	}
}

// pump reads until the end, or until `limit` bytes if that is not negative.
func (l *lane) pump(limit int, echo bool) {
	buffer := make([]byte, 65536)
	for limit < 0 || l.received < limit {
		n, problem := l.Read(buffer)
		l.Lock()
		l.received += n
		l.sum.Write(buffer[:n])
		if problem == io.EOF {
			l.ended = true
		} else if problem != nil {
			l.failure = problem.Error()
		}
		l.changed.Broadcast()
		l.Unlock()
		if echo && n > 0 {
			if _, failed := l.Write(buffer[:n]); failed != nil {
				return
			}
		}
		if problem != nil {
			return
		}
	}
}

func tell(event string, l *lane) {
	fields := l.status()
	fields["event"] = event
	say(fields)
}

func take(stream *yamux.Stream) {
	l := add(stream, "remote")
	mutex.Lock()
	way := mode
	mutex.Unlock()
	quiet, _ := way["quiet"].(bool)
	if !quiet {
		tell("stream", l)
	}
	switch way.text("incoming") {
	case "echo":
		l.pump(-1, true)
		l.Close()
	case "late":
		l.pump(-1, false)
		l.Write(contents(way.number("seed", 0), way.number("size", 0)))
		l.Close()
	case "sink":
		l.pump(-1, false)
		l.Close()
	case "count": // say when all has come: after its own close the other side reads no more
		l.pump(way.number("bytes", 0), false)
		l.Write([]byte{1})
		l.pump(-1, false)
		l.Close()
	case "stall":
		return
	default:
		l.pump(-1, false)
	}
	if !quiet {
		tell("end", l)
	}
}

func exchange(c command) (map[string]interface{}, error) {
	count, size, seed := c.number("count", 1), c.number("size", 0), c.number("seed", 0)
	results := make([]interface{}, count)
	began := time.Now()
	var work sync.WaitGroup
	var failed error
	for i := 0; i < count; i++ {
		stream, problem := session.OpenStream()
		if problem != nil {
			return nil, problem
		}
		work.Add(1)
		go func(i int, l *lane) {
			defer work.Done()
			go l.Write(contents(seed+i, size))
			l.pump(size, false)
			l.Close()
			results[i] = l.status()
		}(i, add(stream, "local"))
	}
	work.Wait()
	return map[string]interface{}{"results": results, "seconds": time.Since(began).Seconds()}, failed
}

// blast opens a stream, writes, waits until the other side (mode "count") has it, and closes.
func blast(bytes, size int) error {
	stream, problem := session.OpenStream()
	if problem != nil {
		return problem
	}
	data := make([]byte, size)
	for sent := 0; sent < bytes; sent += size {
		if _, problem := stream.Write(data); problem != nil {
			return problem
		}
	}
	if _, problem := stream.Read(data[:1]); problem != nil {
		return problem
	}
	return stream.Close()
}

func side_by_side(count int, work func() error) (map[string]interface{}, error) {
	began := time.Now()
	failures := make(chan error, count)
	for i := 0; i < count; i++ {
		go func() { failures <- work() }()
	}
	var failed error
	for i := 0; i < count; i++ {
		if problem := <-failures; problem != nil {
			failed = problem
		}
	}
	return map[string]interface{}{"seconds": time.Since(began).Seconds()}, failed
}

// pings measures up to count round trips one after the other, while `bytes` of bulk data are sent
// (0: none), and no longer than that takes.
func pings(count, bytes, size int) (map[string]interface{}, error) {
	sent := make(chan error, 1)
	if bytes > 0 {
		go func() { sent <- blast(bytes, size) }()
	}
	found := []float64{}
	for len(found) < count {
		taken, problem := session.Ping()
		if problem != nil {
			return nil, problem
		}
		found = append(found, taken.Seconds())
		select {
		case problem := <-sent:
			return map[string]interface{}{"seconds": found}, problem
		default:
		}
	}
	var problem error
	if bytes > 0 {
		problem = <-sent
	}
	return map[string]interface{}{"seconds": found}, problem
}

func obey(c command) (map[string]interface{}, error) {
	mutex.Lock()
	l := lanes[c.number("stream", 0)]
	mutex.Unlock()
	switch c.text("do") {
	case "mode":
		mutex.Lock()
		mode = c
		mutex.Unlock()
		return nil, nil
	case "exchange":
		return exchange(c)
	case "blast":
		streams, size := c.number("streams", 1), c.number("size", 65536)
		return side_by_side(streams, func() error {
			return blast(c.number("bytes", size)/streams, size)
		})
	case "openclose":
		flight := c.number("in_flight", 1)
		return side_by_side(flight, func() error {
			for i := 0; i < c.number("count", 1)/flight; i++ {
				if problem := blast(0, 1); problem != nil {
					return problem
				}
			}
			return nil
		})
	case "open":
		stream, problem := session.OpenStream()
		if problem != nil {
			return nil, problem
		}
		l = add(stream, "local")
		go l.pump(-1, false)
		return map[string]interface{}{"streams": []interface{}{l.status()}}, nil
	case "rtt":
		taken, problem := session.Ping()
		return map[string]interface{}{"ms": taken.Seconds() * 1000}, problem
	case "pings":
		return pings(c.number("count", 1), c.number("bytes", 0), c.number("size", 65536))
	case "goaway":
		return nil, session.GoAway()
	case "disconnect":
		return nil, session.Close()
	}
	if l == nil {
		return nil, fmt.Errorf("no stream %v", c["stream"])
	}
	switch c.text("do") {
	case "send":
		data := []byte(c.text("text"))
		if size := c.number("size", -1); size >= 0 {
			data = contents(c.number("seed", 0), size)
		}
		n, problem := l.Write(data)
		return map[string]interface{}{"sent": n}, problem
	case "end":
		return nil, l.Close()
	case "wait":
		l.Lock()
		for l.received < c.number("bytes", 1<<62) && !l.ended && l.failure == "" {
			l.changed.Wait()
		}
		l.Unlock()
		return l.status(), nil
	case "status":
		return l.status(), nil
	}
	return nil, fmt.Errorf("no command %q", c.text("do"))
}

// obeyFirstLine does what the first line of a stream asks for (`testee: source 5`), else echoes.
// The library resets no streams, so there is no command for that.
func obeyFirstLine(session *yamux.Session, stream *yamux.Stream) {
	defer stream.Close()
	first := make([]byte, 65536)
	n, _ := stream.Read(first)
	word, number := "echo", 0
	if line := bytes.IndexByte(first[:n], '\n'); line >= 0 && bytes.HasPrefix(first, []byte("testee: ")) {
		fmt.Sscan(string(first[8:line]), &word, &number)
		first, n = first[line+1:], n-line-1
	}
	switch word {
	case "source":
		stream.Write(bytes.Repeat([]byte("z"), number))
	case "open":
		for i := 0; i < number; i++ {
			session.OpenStream()
		}
	case "sink":
		io.Copy(io.Discard, stream)
	case "half-close":
		stream.Close()
		io.Copy(io.Discard, stream)
	case "never-read":
		<-session.CloseChan()
	default:
		stream.Write(first[:n])
		io.Copy(stream, stream)
	}
}

// echoEverything is a testee for `polymux conform`: a session for every connection, without end.
func echoEverything(listener net.Listener, config *yamux.Config) {
	config.LogOutput = io.Discard
	for {
		conn, problem := listener.Accept()
		if problem != nil {
			os.Exit(0)
		}
		go func() {
			session, problem := yamux.Server(conn, config)
			if problem != nil {
				return
			}
			for {
				stream, problem := session.AcceptStream()
				if problem != nil {
					session.Close()
					return
				}
				go obeyFirstLine(session, stream)
			}
		}()
	}
}

func main() {
	listen := flag.Int("listen", -1, "port to listen on")
	connect := flag.Int("connect", -1, "port to connect to")
	keepalive := flag.Int("keepalive", 30000, "milliseconds between pings")
	testee := flag.Bool("testee", false, "echo the streams of every connection, without commands")
	flag.Parse()
	config := yamux.DefaultConfig()
	config.KeepAliveInterval = time.Duration(*keepalive) * time.Millisecond
	config.LogOutput = os.Stderr
	var conn net.Conn
	if *listen >= 0 {
		listener, problem := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(*listen))
		if problem != nil {
			os.Exit(4)
		}
		say(command{"event": "listening", "listening": listener.Addr().(*net.TCPAddr).Port})
		if *testee {
			echoEverything(listener, config)
		}
		conn, _ = listener.Accept()
		session, _ = yamux.Server(conn, config)
	} else {
		var problem error
		conn, problem = net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(*connect))
		if problem != nil {
			os.Exit(4)
		}
		session, _ = yamux.Client(conn, config)
		say(command{"event": "connected"})
	}
	say(command{"event": "session"})
	go func() {
		for {
			stream, problem := session.AcceptStream()
			if problem != nil {
				say(command{"event": "disconnected", "message": problem.Error()})
				return
			}
			go take(stream)
		}
	}()
	lines := bufio.NewReader(os.Stdin)
	for {
		line, problem := lines.ReadBytes('\n')
		if problem != nil {
			os.Exit(0)
		}
		var c command
		if json.Unmarshal(line, &c) != nil {
			continue
		}
		go func(c command) {
			answer, problem := obey(c)
			if answer == nil {
				answer = map[string]interface{}{}
			}
			answer["event"], answer["do"], answer["call"] = "reply", c["do"], c["call"]
			answer["ok"] = problem == nil
			if problem != nil {
				answer["error"] = problem.Error()
			}
			say(answer)
		}(c)
	}
}
