// Package mixed serves HTTP and HTTPS at the same address.
package mixed

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// firstTimeout bounds the wait for the first byte of a connection.
	firstTimeout = 10 * time.Second
	// handshake is the first byte of a TLS connection. No HTTP method starts with it.
	handshake = 0x16
)

type listener struct {
	net.Listener
	config   *tls.Config
	accepted chan connection
	closed   chan struct{}
	close    sync.Once
}

type connection struct {
	net.Conn
	err error
}

// NewListener returns a listener that accepts HTTP and HTTPS. Its Accept returns a *tls.Conn for
// each client that uses TLS.
func NewListener(inner net.Listener, config *tls.Config) net.Listener {
	l := &listener{Listener: inner, config: config, accepted: make(chan connection), closed: make(chan struct{})}
	go l.run()
	return l
}

// Accept returns the next connection, after its first byte has arrived.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case next := <-l.accepted:
		return next.Conn, next.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close stops the listener.
func (l *listener) Close() error {
	l.close.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

func (l *listener) run() {
	for {
		accepted, err := l.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			l.close.Do(func() { close(l.closed) })
			return
		case err != nil:
			l.hand(connection{err: err}) // the server retries after a delay
		default:
			go l.look(accepted)
		}
	}
}

func (l *listener) hand(next connection) {
	select {
	case l.accepted <- next:
	case <-l.closed:
		if next.Conn != nil {
			_ = next.Close()
		}
	}
}

// look reads the first byte of a connection, which shows whether the client uses TLS or plain HTTP.
func (l *listener) look(accepted net.Conn) {
	begun := &begun{Conn: accepted, first: make([]byte, 1)}
	err := accepted.SetReadDeadline(time.Now().Add(firstTimeout))
	if err == nil {
		_, err = accepted.Read(begun.first)
	}
	if err == nil {
		err = accepted.SetReadDeadline(time.Time{})
	}
	switch {
	case err != nil:
		_ = accepted.Close()
	case begun.first[0] == handshake:
		l.hand(connection{Conn: tls.Server(begun, l.config)})
	default:
		l.hand(connection{Conn: begun})
	}
}

// begun is a connection whose first byte was already read. Its method Read returns this byte again.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 || len(p) == 0 {
		return b.Conn.Read(p)
	}
	p[0], b.first = b.first[0], nil
	return 1, nil
}
