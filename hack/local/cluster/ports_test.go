package cluster

import (
	"net"
	"path/filepath"
	"testing"
)

func TestPortsAreReusedIfTheyAreStillFree(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ports.json")
	assign := func(reserved ...int) Ports {
		t.Helper()
		ports, err := AssignPorts(file, []string{"a", "b"}, reserved...)
		if err != nil {
			t.Fatal(err)
		}
		if ports["a"] == ports["b"] {
			t.Fatalf("two names got the same port: %v", ports)
		}
		return ports
	}
	first := assign()
	if second := assign(); second["a"] != first["a"] || second["b"] != first["b"] {
		t.Errorf("ports moved from %v to %v", first, second)
	}

	taken, err := net.Listen("tcp", first.Address("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	third := assign()
	if third["a"] == first["a"] || third["b"] != first["b"] {
		t.Errorf("with port %d taken, ports moved from %v to %v", first["a"], first, third)
	}
	if fourth := assign(third["b"]); fourth["b"] == third["b"] {
		t.Errorf("the reserved port %d was assigned", third["b"])
	}
}

func TestStateDirectoryIsLockedForOneProcess(t *testing.T) {
	dir := t.TempDir()
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil {
		t.Error("locked twice")
	}
	unlock()
	unlock, err = Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
