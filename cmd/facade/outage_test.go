package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	corev1 "k8s.io/api/core/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/facadeenv"
)

// killAPIServer kills the API server. It finds the API server's process among the children of this
// process, by the port in the command line.
func (p *parley) killAPIServer(t *testing.T) {
	t.Helper()
	port := "--secure-port=" + p.ControlPlane.GetAPIServer().Port
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range processes {
		command, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(command), port) {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(file), "status"))
		if err != nil || !strings.Contains(string(status), fmt.Sprintf("PPid:\t%d\n", os.Getpid())) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatal("no API server to kill")
}

// restartAPIServer starts the API server again with the same port and data.
func (p *parley) restartAPIServer() error {
	server := p.ControlPlane.GetAPIServer()
	if err := server.Stop(); err != nil {
		return err
	}
	return server.Start()
}

func TestAcknowledgedWritesSurviveAnAPIServerOutage(t *testing.T) {
	env, err := facadeenv.Start(t.TempDir(), true, keepCertificates(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	own := &parley{Env: env}
	t.Cleanup(func() { _ = own.Stop() }) // the operator may fail during the outage
	f, err := startFacade(env, "--user-rate=0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Stop() })
	ada := own.newPerson(t, f.URL)

	var mu sync.Mutex
	stored := map[string]bool{} // IDs and languages whose write got the status 200
	codes := map[int]int{}
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for worker := range 8 {
		clients.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				id := fmt.Sprintf("talk-%d-%d", worker, i)
				r, err := ada.send("POST", "/api/conversations", fmt.Sprintf(`{"conversation_id": %q, "mcp_config": `+
					`{"sse_servers": [{"url": "https://a.example.com", "api_key": %q}]}}`, id, id))
				if err != nil {
					t.Error(err)
					return
				}
				if r.code == http.StatusServiceUnavailable && r.header.Get("Retry-After") == "" {
					t.Errorf("503 without Retry-After")
				}
				mu.Lock()
				codes[r.code]++
				stored[id] = r.code == http.StatusOK
				mu.Unlock()
				if r.code != http.StatusOK {
					<-time.After(50 * time.Millisecond) // like Retry-After, but shorter
				}
			}
		})
	}
	awaitResponses := func(code, more int) {
		t.Helper()
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return codes[code]
		}
		before := count()
		await(t, func() error {
			if got := count() - before; got < more {
				return fmt.Errorf("%d answers %d, want %d", got, code, more)
			}
			return nil
		})
	}
	awaitResponses(http.StatusOK, 40)
	own.killAPIServer(t)
	awaitResponses(http.StatusServiceUnavailable, 40)
	(&person{url: f.URL}).get(t, "/alive").wants(t, 200)
	// The facade stays ready: all facades need the API server, so no other facade could take over.
	(&person{url: f.URL}).get(t, "/ready").wants(t, 200)
	ada.get(t, "/api/conversations").wants(t, 200)
	if err := own.restartAPIServer(); err != nil {
		t.Fatal(err)
	}
	awaitResponses(http.StatusOK, 40)
	stop()
	clients.Wait()

	t.Logf("answers: %v", codes)
	if codes[http.StatusOK] == 0 || codes[http.StatusServiceUnavailable] == 0 || len(codes) != 2 {
		t.Errorf("want only 200 and 503")
	}
	for id, answered := range stored {
		c := &v1alpha1.Conversation{}
		err := own.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: id}, c)
		if answered && (err != nil || c.Annotations[v1alpha1.AnnotationIncomplete] != "") {
			t.Errorf("%s was acknowledged and is missing (%v)", id, err)
		}
		if answered {
			secret := &corev1.Secret{}
			key := client.ObjectKey{Namespace: ada.namespace, Name: c.Spec.MCPConfig.SSEServers[0].APIKeyRef.Name}
			err := own.Client.Get(t.Context(), key, secret)
			if err != nil || string(secret.Data[v1alpha1.ManagedSecretKey]) != id {
				t.Errorf("the key of %s is missing (%v)", id, err)
			}
		}
	}
}

// keepCertificates keeps the API server's certificates across a restart.
func keepCertificates(dir string) func(*envtest.Environment) {
	return func(e *envtest.Environment) { e.ControlPlane.GetAPIServer().CertDir = dir }
}

func (p *parley) newPerson(t *testing.T, url string) *person {
	t.Helper()
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "ada"}}
	if err := p.Client.Create(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
	person := &person{url: url, namespace: "default", name: "ada"}
	await(t, func() error {
		secret := &corev1.Secret{}
		err := p.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: v1alpha1.SessionKeySecretName("ada")},
			secret)
		if err != nil {
			return err
		}
		person.key = string(secret.Data[v1alpha1.SessionKeySecretKey])
		return codeOf(person.post(t, "/api/settings", `{"llm_model": "ollama/small"}`), 200)
	})
	return person
}
