package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/kubernetes"

	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
)

const nodePort = "node"

func (l *local) startManager(ctx context.Context) error {
	return l.supervisor.Start(ctx, l.parley.ManagerProcess())
}

func (l *local) startArchive(ctx context.Context) error {
	if err := l.parley.MountSigningKey(ctx); err != nil {
		return err
	}
	return l.supervisor.Start(ctx, l.parley.ArchiveProcess())
}

func (l *local) startFacade(ctx context.Context) error {
	return l.supervisor.Start(ctx, l.parley.FacadeProcess())
}

func (l *local) nodeAPI() (*node.API, error) {
	config, err := l.plane.PKI.ServerTLS()
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", l.plane.Ports.Address(nodePort))
	return &node.API{Listener: listener, TLS: config, Client: cluster.KubeletClient}, err
}

func (l *local) startNode(ctx context.Context) error {
	program := filepath.Join(l.binDir, "supervisor")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("the supervisor program is missing, run make build: %w", err)
	}
	pods, err := kubernetes.NewForConfig(l.config)
	if err != nil {
		return err
	}
	api, err := l.nodeAPI()
	if err != nil {
		return err
	}
	ctx, l.endNode = context.WithCancel(ctx)
	l.node, err = node.Start(ctx, node.Options{
		Name: "local", Client: pods, Say: l.say,
		Program: program, State: l.stateDir, Logs: l.podLogs(), API: api,
	}, l.force)
	if err != nil {
		l.endNode()
	}
	return err
}
