package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/facadeenv"
	"github.com/parley-dev/parley/hack/test/testenv"
)

func killRuntime(t *testing.T, podUID string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.HasPrefix(string(command), program("runtime")) || !strings.Contains(string(command),
			"run") {
			continue
		}
		if at, err := os.Readlink(filepath.Join(dir, "cwd")); err != nil || !strings.Contains(at, podUID) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// watcher records the events of a conversation. If its stream ends, it reconnects after the last
// event that it received.
type watcher struct {
	mu   sync.Mutex
	seen []string
}

func (w *watcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen)
}

func (w *watcher) watch(ctx context.Context, p *person, id string) error {
	for ctx.Err() == nil {
		err := p.stream(ctx, id, w.count()-1, func(event json.RawMessage) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if e, err := session.ParseEvent(event); err != nil || e.ID != len(w.seen) {
				return fmt.Errorf("after %d events comes %s", len(w.seen), event)
			}
			w.seen = append(w.seen, string(event))
			return nil
		})
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// The test kills the facade, the runtime and the manager while a client writes and a watcher reads.
// The watcher must get each event exactly once. No acknowledged message may be lost. The archive
// must contain the same events.
func TestEventsAreNeitherLostNorRepeatedAfterKills(t *testing.T) {
	t.Parallel()
	address := facadeenv.FreeAddress()
	start := func() *facadeenv.Facade {
		t.Helper()
		facade, err := suite.StartFacadeAt(address, program("facade"), "--user-rate=0",
			"--archive=https://"+suite.ArchiveAddress, archiveCA())
		if err != nil {
			t.Fatal(err)
		}
		return facade
	}
	facade := start()
	ada := newPerson(t, nil)
	ada.url = facade.URL
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	eyes := &watcher{}
	var all sync.WaitGroup
	all.Go(func() {
		if err := eyes.watch(ctx, ada, "talk"); err != nil {
			t.Error(err)
		}
	})
	var mu sync.Mutex
	acknowledged, sent := map[string]bool{}, 0
	all.Go(func() {
		for ctx.Err() == nil {
			mu.Lock()
			text := fmt.Sprintf("message %d.", sent)
			sent++
			mu.Unlock()
			if code, _ := ada.try(ctx, "POST", "/api/conversations/talk/message", `{"message": "`+text+
				`"}`); code == http.StatusOK {
				mu.Lock()
				acknowledged[text] = true
				mu.Unlock()
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	heard := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acknowledged)
	}
	dice := rand.New(rand.NewPCG(1, 2))
	for kill := range 9 {
		before := heard()
		testenv.Await(t, func() error {
			if heard() < before+1+dice.IntN(3) {
				return fmt.Errorf("after %d kills only %d messages were acknowledged", kill, heard())
			}
			return nil
		})
		switch kill % 3 {
		case 0:
			facade.Kill()
			facade = start()
		case 1:
			killRuntime(t, podUID(t, ada, "talk"))
		case 2:
			suite.manager.kill()
			if kill > 3 { // the session continues without a manager
				killRuntime(t, podUID(t, ada, "talk"))
			}
			if err := suite.manager.start(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	all.Wait()
	t.Cleanup(func() { _ = facade.Stop() })

	ada.url = suite.facade.URL
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	count := map[string]int{}
	for _, e := range ada.events(t, "talk") {
		if e.IsUserMessage() {
			count[e.Text()]++
		}
	}
	for text := range acknowledged {
		if count[text] != 1 {
			t.Errorf("%q was acknowledged, but exists %d times", text, count[text])
		}
	}
	for text, n := range count {
		if n > 1 {
			t.Errorf("%q exists %d times", text, n)
		}
	}
	live := ada.lines(t, "talk")
	ada.stop(t, "talk")
	testenv.Await(t, func() error {
		if archived := ada.lines(t, "talk"); len(archived) < len(live) {
			return fmt.Errorf("%d of %d events are archived", len(archived), len(live))
		}
		return nil
	})
	archived := ada.lines(t, "talk")
	for i, line := range live {
		if archived[i] != line {
			t.Errorf("event %d was %s and is archived as %s", i, line, archived[i])
		}
	}
	for i, line := range eyes.seen {
		if archived[i] != line {
			t.Errorf("event %d was seen as %s and is archived as %s", i, line, archived[i])
		}
	}
	t.Logf("%d events, %d of %d messages acknowledged", len(archived), len(acknowledged), sent)
}

func (p *person) lines(t *testing.T, id string) (all []string) {
	t.Helper()
	code, answer := p.do(t, "GET", "/api/conversations/"+id+"/trajectory", "")
	if code != http.StatusOK {
		return nil
	}
	for _, line := range decode[struct{ Trajectory []json.RawMessage }](t, answer).Trajectory {
		all = append(all, string(line))
	}
	return all
}
