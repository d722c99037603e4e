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

// Outgoing connections take their ports from 32768 upwards on Linux. A port
// below is not lost to one of them between its choice and its use.
const (
	firstPort = 20000
	lastPort  = 29999
)

// Ports are the ports of a cluster's servers on loopback, by purpose.
type Ports map[string]int

// AssignPorts chooses a free port for each purpose: the one that the file
// remembers from last time if it is still free, so that a copied address stays
// good, else another one. It never chooses a reserved port.
func AssignPorts(file string, purposes []string, reserved ...int) (Ports, error) {
	last := Ports{}
	if content, err := os.ReadFile(file); err == nil {
		_ = json.Unmarshal(content, &last) // unreadable: as if there were none
	}
	taken := map[int]bool{}
	for _, port := range reserved {
		taken[port] = true
	}
	ports := Ports{}
	for _, purpose := range purposes {
		port := last[purpose]
		for attempt := 0; port == 0 || taken[port] || PortFree(port) != nil; attempt++ {
			if attempt == 1000 {
				return nil, fmt.Errorf("no free port on 127.0.0.1 between %d and %d", firstPort, lastPort)
			}
			port = firstPort + rand.IntN(lastPort-firstPort+1)
		}
		taken[port] = true
		ports[purpose] = port
	}
	content, err := json.Marshal(ports)
	if err != nil {
		return nil, err
	}
	return ports, WritePrivate(file, content)
}

// PortFree returns nil if a server could listen on the port of 127.0.0.1.
func PortFree(port int) error {
	listener, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return errors.Unwrap(err)
	}
	return listener.Close()
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Address is where the server of this purpose listens.
func (p Ports) Address(purpose string) string { return loopback(p[purpose]) }
