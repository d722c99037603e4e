package main

import (
	"net"
	"strings"
	"testing"
)

func TestWithoutAFacadeTheDemoSuggestsMakeRun(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	if err := run(t.Context(), options{facade: address, state: state}); err == nil || !strings.Contains(err.Error(),
		"start `make run` first") || !strings.Contains(err.Error(), address) {
		t.Errorf("the output is: %v", err)
	}
}

func TestTheDemoPrintsTheCommandThatOpensThePage(t *testing.T) {
	o := options{state: ".local", facade: "http://127.0.0.1:3001", namespace: "default"}
	open := "KUBECONFIG=.local/kubeconfig PARLEY_FACADE=http://127.0.0.1:3001 bin/kubectl-parley open --settings demo " +
		"-n default\n"
	if text := farewell(o, true); !strings.Contains(text, open) || !strings.Contains(text,
		"The git host and the scripted model end with this demo") {
		t.Errorf("the output is: %s", text)
	}
	if text := farewell(o, false); !strings.Contains(text, open) || strings.Contains(text, "scripted") {
		t.Errorf("the output with a real model is: %s", text)
	}
}
