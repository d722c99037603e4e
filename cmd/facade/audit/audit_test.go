package audit_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/parley-dev/parley/cmd/facade/audit"
)

type disk struct {
	bytes.Buffer
	full bool
}

func (d *disk) Write(text []byte) (int, error) {
	if d.full {
		return 0, errors.New("no space left on device")
	}
	return d.Buffer.Write(text)
}

func TestEntriesThatCannotBeWrittenAreCounted(t *testing.T) {
	to, registry := &disk{}, prometheus.NewRegistry()
	log := audit.New(to, registry)
	for _, full := range []bool{false, true, true, false} {
		to.full = full
		log.Write(audit.Entry{Call: "POST /api/conversations"})
	}
	if lines := strings.Count(to.String(), "\n"); lines != 2 {
		t.Errorf("%d entries are written: %s", lines, to)
	}
	const want = `# HELP parley_facade_audit_failures_total Entries of the audit log that could not be written.
# TYPE parley_facade_audit_failures_total counter
parley_facade_audit_failures_total 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestAnAuditLogThatCannotBeOpenedIsAnError(t *testing.T) {
	if _, err := audit.Open(filepath.Join(t.TempDir(), "no", "dir"), prometheus.NewRegistry()); err == nil ||
		!strings.Contains(err.Error(), "--audit-log") {
		t.Errorf("the error is %v", err)
	}
	log, err := audit.Open("", prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	log.Write(audit.Entry{}) // an audit log that is off writes nothing
}
