package testenv

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// auditPolicy logs every finished request without its body.
const auditPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", ` +
	`"ResponseStarted"], "rules": [{"level": "Metadata"}]}`

// WithAuditLog makes the API server write an audit log to the directory. Tests count requests in
// this log.
func WithAuditLog(dir string) Option {
	return func(e *envtest.Environment) {
		policy := filepath.Join(dir, "policy.json")
		if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
			panic(err)
		}
		e.ControlPlane.GetAPIServer().Configure().
			Set("audit-policy-file", policy).
			Set("audit-log-path", filepath.Join(dir, auditLog))
	}
}

const auditLog = "audit.log"

// Request is an entry of the audit log.
type Request struct {
	Verb  string `json:"verb"`
	Stage string `json:"stage"`
	User  struct {
		Username string `json:"username"`
	} `json:"user"`
	Object struct {
		Group       string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	Status struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// Writes returns all write requests of a user to a namespace, including failed requests.
func Writes(t *testing.T, dir, user, namespace string) []Request {
	t.Helper()
	return slices.DeleteFunc(Requests(t, dir, user), func(r Request) bool {
		return r.Object.Namespace != namespace || slices.Contains([]string{"get", "list", "watch"}, r.Verb)
	})
}

// Requests returns all requests of a user.
func Requests(t *testing.T, dir, user string) []Request {
	t.Helper()
	file, err := os.Open(filepath.Join(dir, auditLog))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	return ReadAuditLog(file, user)
}

// ReadAuditLog returns the requests of a user. If the name is empty, it returns the requests of all
// users.
func ReadAuditLog(log io.Reader, user string) []Request {
	var requests []Request
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r Request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			break // a line that is not complete yet
		}
		if user == "" || r.User.Username == user {
			requests = append(requests, r)
		}
	}
	return requests
}
