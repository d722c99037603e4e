package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// outcome is the outcome of an operation as far as its client knows.
type outcome int

const (
	accepted outcome = iota
	refused
	unknown // the operation may have succeeded: no response, or a server error
)

// The guarantees.
const (
	checkLost      = "no accepted request is lost"
	checkOnce      = "each conversation is created once"
	checkPods      = "each attempt has at most one pod"
	checkAttempts  = "each attempt has a cause"
	checkStates    = "every state is right"
	checkOrphans   = "no object is orphaned"
	checkKeys      = "no key leaks"
	checkProcesses = "no process panics"
	checkNode      = "the node is a stub"
	checkBinds     = "no session is in two pods, no secret in another session's"
	checkPools     = "no warm pod leaks"
)

var (
	checks = []string{checkLost, checkOnce, checkPods, checkBinds, checkPools, checkAttempts, checkStates, checkOrphans,
		checkKeys, checkProcesses}
	poolChecks = []string{checkBinds, checkPools}
	victims    = []string{managerLeads, managerWaits, managerShares, "facade", archiveVictim, "kube-apiserver", "etcd"}
	operations = []string{opCreate, opReplay, opStop, opStart, opDelete, opSettings, opRead}
	frontends  = []string{frontendAPI, frontendHTTP}
)

// maxShown is the number of problems printed per check.
const maxShown = 10

// report collects the results. Its methods are safe for concurrent use.
type report struct {
	mu       sync.Mutex
	kills    map[string]int
	aimed    int
	ended    map[string]int
	counts   map[[2]string]*[3]int // keyed by frontend and operation
	problems map[string][]string
	notes    map[string]string
	// made are the keys that the operator generated. looked counts the texts that were searched for
	// keys. scrapes counts the responses of metrics endpoints among these texts.
	made            secretValues
	looked, scrapes int
}

func newReport() *report {
	return &report{kills: map[string]int{}, ended: map[string]int{}, counts: map[[2]string]*[3]int{},
		problems: map[string][]string{}, notes: map[string]string{}}
}

// kill counts a kill. aimed is set if, at the time of the kill, a session had claimed a warm pod
// and was not RUNNING yet.
func (r *report) kill(what string, aimed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kills[what]++
	if aimed {
		r.aimed++
	}
}

func (r *report) killsOf(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kills[what]
}

func (r *report) endedByItself(what string, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if times > 0 {
		r.ended[what] += times
	}
}

func (r *report) count(frontend, operation string, o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := [2]string{frontend, operation}
	if r.counts[key] == nil {
		r.counts[key] = &[3]int{}
	}
	r.counts[key][o]++
}

// violation reports a violated guarantee. The same message counts once.
func (r *report) violation(check, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if !slices.Contains(r.problems[check], text) {
		r.problems[check] = append(r.problems[check], text)
	}
}

// note records how much a check has covered, such as the number of checked objects.
func (r *report) note(check, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes[check] = fmt.Sprintf(format, args...)
}

func (r *report) violated() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.problems) > 0
}

func (r *report) printCounts(out io.Writer, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	all := 0
	line("\nkilled\ttimes")
	for _, v := range victims {
		all += r.kills[v]
		line("%s\t%d", v, r.kills[v])
	}
	line("all\t%d in %s", all, took.Round(time.Second))
	line("of these between claim and RUNNING\t%d", r.aimed)
	for _, name := range slices.Sorted(maps.Keys(r.ended)) {
		line("%s ended %d times by itself", name, r.ended[name])
	}
	line("\noperation\tAPI\taccepted\trefused\tunknown")
	for _, operation := range operations {
		for _, frontend := range frontends {
			if n := r.counts[[2]string{frontend, operation}]; n != nil {
				line("%s\t%s\t%d\t%d\t%d", operation, frontend, n[accepted], n[refused], n[unknown])
			}
		}
	}
	line("\n(%s: %s)", checkNode, r.notes[checkNode])
}

func (r *report) printChecks(out io.Writer, checks ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	line("\ncheck\t\tof")
	for _, check := range checks {
		verdict := "ok"
		if len(r.problems[check]) > 0 {
			verdict = fmt.Sprintf("FAILED %d", len(r.problems[check]))
		}
		line("%s\t%s\t%s", check, verdict, r.notes[check])
	}
	for _, check := range checks {
		for i, problem := range r.problems[check] {
			if i == maxShown {
				line("%s: and %d more", check, len(r.problems[check])-maxShown)
				break
			}
			line("%s: %s", check, problem)
		}
	}
}
