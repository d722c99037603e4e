// Package audit writes one JSON line for each change that a client requests.
package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Entry is a line of the log. It contains no content of a request or a response.
type Entry struct {
	Time time.Time `json:"time"`
	// Person is the username; empty for a session key.
	Person string `json:"person,omitempty"`
	// Settings is the namespace and name of the UserSettings; empty if the client was not
	// authenticated.
	Settings string `json:"settings,omitempty"`
	// The field How is the kind of the credential: key, cookie, oidc or kubernetes; empty without a
	// credential.
	How     string `json:"how,omitempty"`
	Address string `json:"address"`
	// Call is the method and the route. Action is the kind of an event that the client sends to a
	// session.
	Call         string `json:"call"`
	Action       string `json:"action,omitempty"`
	Conversation string `json:"conversation,omitempty"`
	// Outcome is the status code.
	Outcome   int    `json:"outcome"`
	RequestID string `json:"request_id"`
}

// Log writes entries. The zero value and nil write nothing.
type Log struct {
	mu       sync.Mutex
	to       io.Writer
	failures prometheus.Counter
	failing  bool
}

// Open returns a log that writes to the file at a path or, if the path is "stdout", to standard
// output. If the path is empty, Open returns nil.
func Open(path string, registry prometheus.Registerer) (*Log, error) {
	var to io.Writer = os.Stdout
	switch path {
	case "":
		return nil, nil
	case "stdout":
	default:
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("--audit-log: %w", err)
		}
		to = file
	}
	return New(to, registry), nil
}

// New returns a log that writes to a writer.
func New(to io.Writer, registry prometheus.Registerer) *Log {
	l := &Log{to: to, failures: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "parley_facade_audit_failures_total", Help: "Entries of the audit log that could not be written."})}
	registry.MustRegister(l.failures)
	return l
}

// Write writes an entry. It counts every failure, but logs only the first failure since the last
// successful write.
func (l *Log) Write(entry Entry) {
	if l == nil || l.to == nil {
		return
	}
	entry.Time = time.Now().UTC()
	var line bytes.Buffer
	err := json.NewEncoder(&line).Encode(entry)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		_, err = l.to.Write(line.Bytes())
	}
	if err == nil {
		l.failing = false
		return
	}
	l.failures.Inc()
	if !l.failing {
		ctrl.Log.WithName("audit").Error(err, "Cannot write the audit log")
	}
	l.failing = true
}
