package main

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const timeout = 30 * time.Second

// suite is shared by all tests: an API server with Parley's manifests, the operator, and the facade
// as a process.
var suite *parley

// parley is an API server with the operator.
type parley struct {
	*facadeenv.Env
	dir    string
	facade *facadeenv.Facade
}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	flag.Parse()
	code, err := runSuite(m)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runSuite(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "parley-facade-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	env, err := facadeenv.Start(dir, true)
	if err != nil {
		return 0, err
	}
	suite = &parley{Env: env, dir: dir}
	defer func() { err = errors.Join(err, suite.Stop()) }()
	if suite.facade, err = startFacade(env, "--user-rate=0"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, suite.facade.Stop()) }()
	return m.Run(), nil
}

var program = sync.OnceValues(func() (string, error) {
	file := filepath.Join(suite.dir, "facade")
	return file, facadeenv.Build(file)
})

// startFacade starts a facade with the most detailed log.
func startFacade(env *facadeenv.Env, args ...string) (*facadeenv.Facade, error) {
	file, err := program()
	if err != nil {
		return nil, err
	}
	return env.StartFacade(file, append([]string{"--zap-log-level=9"}, args...)...)
}

func await(t *testing.T, check func() error) {
	t.Helper()
	testenv.Await(t, check)
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := suite.Client.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// canary returns a value that must not appear anywhere.
func canary() string { return "canary-" + strings.ToLower(rand.Text()) }
