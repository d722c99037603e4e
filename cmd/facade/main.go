// Command facade serves Parley's HTTP operations.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/parley-dev/parley/api/rest"
)

// drain is how long requests under way may take when the facade is told to stop.
const drain = 20 * time.Second

type options struct {
	address        string
	metricsAddress string
}

func main() {
	var o options
	flag.StringVar(&o.address, "bind-address", ":3000", "Where the HTTP operations are served.")
	flag.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "Where metrics are served. 0 turns them off.")
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))

	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		ctrl.Log.Error(err, "facade failed")
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the API server: %w", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("talk to the API server: %w", err)
	}
	server := &http.Server{
		Addr: o.address,
		Handler: rest.NewHandler(func(ctx context.Context) error {
			return client.Discovery().RESTClient().Get().AbsPath("/livez").Do(ctx).Error()
		}),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	ctrl.Log.Info("serving", "address", o.address)
	select {
	case err := <-failed:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if err := server.Shutdown(stopping); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}
