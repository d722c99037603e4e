package main

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// service accepts connections for several processes, as a Kubernetes Service does. It forwards each
// connection to a process that accepts it.
type service struct {
	listener net.Listener
	backends []string
	next     atomic.Int64
}

func serve(address string, backends ...string) (*service, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &service{listener: listener, backends: backends}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go s.connect(client)
		}
	}()
	return s, nil
}

func (s *service) connect(client net.Conn) {
	defer client.Close()
	dialer := net.Dialer{Timeout: time.Second}
	first := s.next.Add(1)
	for i := range s.backends {
		backend, err := dialer.DialContext(context.Background(), "tcp", s.backends[(int(first)+i)%len(s.backends)])
		if err != nil {
			continue
		}
		defer backend.Close()
		over := make(chan struct{}, 2)
		for _, way := range [][2]net.Conn{{client, backend}, {backend, client}} {
			go func() {
				_, _ = io.Copy(way[0], way[1])
				over <- struct{}{}
			}()
		}
		<-over
		return
	}
}

func (s *service) stop() { _ = s.listener.Close() }
