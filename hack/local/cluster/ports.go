package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// Linux gives outgoing connections ports from 32768 upwards. AssignPorts chooses lower ports, so
// that no outgoing connection takes a server's port before the server starts.
const (
	firstPort = 20000
	lastPort  = 29999
)

// Ports maps the name of a server to its port on loopback.
type Ports map[string]int

// AssignPorts chooses a free port for each name, but never a reserved port. It reuses the ports
// recorded in the file if they are free, so that users can keep using copied addresses.
func AssignPorts(file string, names []string, reserved ...int) (Ports, error) {
	last := Ports{}
	if content, err := os.ReadFile(file); err == nil {
		_ = json.Unmarshal(content, &last) // an unreadable file counts as empty
	}
	taken := map[int]bool{}
	for _, port := range reserved {
		taken[port] = true
	}
	ports := Ports{}
	for _, name := range names {
		port := last[name]
		for attempt := 0; port == 0 || taken[port] || PortFree(port) != nil; attempt++ {
			if attempt == 1000 {
				return nil, fmt.Errorf("no free port on 127.0.0.1 between %d and %d", firstPort, lastPort)
			}
			port = firstPort + rand.IntN(lastPort-firstPort+1)
		}
		taken[port] = true
		ports[name] = port
	}
	content, err := json.Marshal(ports)
	if err != nil {
		return nil, err
	}
	return ports, WritePrivate(file, content)
}

// PortFree returns an error if it cannot listen on this port of 127.0.0.1.
func PortFree(port int) error {
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return errors.Unwrap(err)
	}
	return listener.Close()
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Address returns the address on which the named server listens.
func (p Ports) Address(name string) string { return loopback(p[name]) }
