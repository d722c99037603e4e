package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/parley-dev/parley/hack/test/testenv"
)

const (
	boundedCount = 100
	// maxWrites limits the manager's writes per Conversation until the Conversation is RUNNING. The
	// manager writes a Secret, a pod, a status and an event. The additional 0.1 allows for a few
	// conflicts.
	maxWrites = 4.1
	// maxReads limits the manager's reads per Conversation. For each start of a session, the manager
	// reads the UserSettings, and checks that the Conversation has not changed.
	maxReads = 2.1
	// maxAllocated limits the memory in KiB that the API server allocates per Conversation, for the
	// requests of all clients. The measured value was 2,990 KiB.
	maxAllocated = 3250
)

// The test counts requests and allocations, because they hardly vary between machines, unlike
// times.
func TestRequestsAndAllocationsPerConversationAreBounded(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	o := options{bin: t.TempDir(), assets: os.Getenv("KUBEBUILDER_ASSETS")}
	if o.assets == "" {
		o.assets = testenv.Path("bin", "k8s")
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", o.bin+string(filepath.Separator),
		"./cmd/manager", "./cmd/facade")
	build.Dir = testenv.Path()
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, output)
	}
	b, ctx, end, err := startBed(t.Context(), o, plan{audit: auditPolicy})
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if _, err := b.makeMany(ctx, b.conversations(), "warm", warmUp, warmUp); err != nil {
		t.Fatal(err)
	}
	before, err := b.requests(managerUser)
	if err != nil {
		t.Fatal(err)
	}
	made, err := b.makeMany(ctx, b.conversations(), "c", boundedCount, warmUp)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := b.requests(managerUser)
	if err != nil {
		t.Fatal(err)
	}
	reads, writes := 0, 0
	for what, count := range asked {
		count -= before[what]
		switch verb, _, _ := strings.Cut(what, " "); {
		case count == 0 || strings.HasSuffix(what, " leases"): // Leases are renewed periodically
			continue
		case slices.Contains([]string{"get", "list", "watch"}, verb):
			reads += count
		default:
			writes += count
		}
		t.Logf("%4d %s", count, what)
	}
	if each := float64(writes) / boundedCount; each > maxWrites {
		t.Errorf("the manager makes %.2f writes per Conversation, want at most %.2f", each, maxWrites)
	}
	if each := float64(reads) / boundedCount; each > maxReads {
		t.Errorf("the manager makes %.2f reads per Conversation, want at most %.2f", each, maxReads)
	}
	each := made.allocated / boundedCount / 1024
	t.Logf("%.0f KiB allocated per Conversation in %s", each, made.took)
	if each > maxAllocated {
		t.Errorf("the API server allocates %.0f KiB per Conversation, want at most %d", each, maxAllocated)
	}
}
