package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/node"
)

// Guarantees of spending limits.
const (
	checkLimit  = "the costs stay within the limit"
	checkLedger = "the ledger agrees with the model's count"
)

const (
	spendNamespace = "spend"
	// limitPerSession is the amount that each session adds to the spending limit of the user.
	limitPerSession = session.Dollar / 20
	// After this many kills, the month changes, so that the sessions can spend money again.
	killsPerMonth = 20
	// changeMonth sets the clock of the first archive to this time before the end of the month.
	beforeMonth  = 3 * time.Second
	afterRefusal = 500 * time.Millisecond
	// sessionVictim is the name under which kills of sessions are counted.
	sessionVictim = "session"
)

// spending is a run in which sessions of one user spend money.
type spending struct {
	installation *installation
	user         *user
	model        *meter
	sessions     int
	limit        session.Dollars
	say          func(format string, args ...any)
	months       []string

	mu      sync.Mutex
	turns   map[string]int  // number of turns by their outcome
	refused map[string]bool // sessions with a refused call
	// highest is the highest sampled sum of spent and reserved money in a month.
	highest session.Dollars
}

// The outcomes of turns.
const (
	turnDone      = "done"
	turnRefused   = "refused at the limit"
	turnUnchecked = "refused because the archive did not answer"
	turnUnknown   = "unknown because a process was killed"
)

// spendMoney lets sessions spend until their calls are refused. Then it kills archives, facades and
// sessions, and changes the month, while the sessions get more messages.
func spendMoney(ctx context.Context, o options, dir string, r *report, out io.Writer,
	say func(format string, args ...any)) error {
	i, err := install(ctx, o, dir, r)
	if i != nil {
		defer i.stop()
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	pods := filepath.Join(dir, "node")
	stopNode, err := startNode(ctx, i.adminConf, node.Options{Name: "users", Say: say, Program: i.sessionProgram(),
		State: pods, Logs: filepath.Join(dir, "sessions")})
	if err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	defer stopNode()
	s := &spending{installation: i, model: newMeter(), say: say, sessions: o.spenders,
		limit: limitPerSession.Times(int64(o.spenders)), turns: map[string]int{}, refused: map[string]bool{}}
	model := httptest.NewServer(s.model)
	defer model.Close()
	if err := s.createUser(ctx, model.URL); err != nil {
		return fmt.Errorf("create the user: %w", err)
	}
	sampling, stopSampling := context.WithCancel(ctx)
	defer stopSampling()
	go wait.UntilWithContext(sampling, s.sample, probeInterval)

	load := s.begin(ctx)
	defer load.stop()
	say("%d sessions spend against a limit of $%s per month", s.sessions, s.limit)
	if err := cluster.Retry(ctx, probeInterval, s.allRefused); err != nil {
		return err
	}
	if err := s.finish(ctx, load); err != nil {
		return err
	}
	if err := s.compare(ctx, out, r, "without kills"); err != nil || o.kills == 0 {
		return err
	}
	load = s.begin(ctx)
	if err := s.kill(ctx, o, r, filepath.Join(pods, "pods", "*")); err != nil {
		return err
	}
	if err := i.awaitAll(ctx); err != nil {
		return fmt.Errorf("a process did not become ready again: %w", err)
	}
	if err := s.finish(ctx, load); err != nil {
		return err
	}
	if err := s.compare(ctx, out, r, fmt.Sprintf("with %d kills", o.kills)); err != nil {
		return err
	}
	stopSampling()
	i.scrape(ctx, r)
	return i.checkLogs(r, filepath.Join(dir, "logs"))
}

// createUser creates a price, a class with a limit, and a user of the class.
func (s *spending) createUser(ctx context.Context, modelURL string) error {
	admin := s.installation.admin
	prices := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.installation.parley.Namespace(),
		Name: v1alpha1.ModelsName}}
	if _, err := controllerutil.CreateOrUpdate(ctx, admin, prices, func() error {
		prices.Data = map[string]string{session.ModelOverrides: callPrice}
		return nil
	}); err != nil {
		return err
	}
	class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: spendNamespace}, Spec: v1alpha1.SessionClassSpec{
		MaxRestarts: ptr.To[int32](1000),
		Spend:       &v1alpha1.SpendingLimits{PerUser: &v1alpha1.SpendingLimit{Month: ptr.To(s.limit.String())}}}}
	s.user = &user{namespace: spendNamespace, name: "ada", api: &apiFrontend{client: admin}}
	for _, object := range []client.Object{class, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spendNamespace}},
		&v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: spendNamespace, Name: s.user.name},
			Spec: v1alpha1.UserSettingsSpec{SessionClassName: &class.Name}}} {
		if err := admin.Create(ctx, object); err != nil {
			return err
		}
	}
	var err error
	if s.user.http, err = createPerson(ctx, admin, admin, s.installation.facadeURL(), s.user, modelURL,
		s.installation.report); err != nil {
		return err
	}
	usage, err := s.usage(ctx, "")
	s.months = []string{usage.Month}
	return err
}

func sessionName(n int) string { return fmt.Sprintf("session-%02d", n) }

func (s *spending) begin(ctx context.Context) *load {
	ctx, cancel := context.WithCancel(ctx)
	l := &load{cancel: cancel}
	for n := range s.sessions {
		l.clients.Go(func() { s.converse(ctx, sessionName(n)) })
	}
	return l
}

// converse creates a session and sends messages until the context ends.
func (s *spending) converse(ctx context.Context, id string) {
	for {
		a, _ := s.user.http.send(ctx, http.MethodPost, "/api/conversations", rest.ConversationRequest{ConversationID: &id},
			"")
		if a.outcome == accepted || a.outcome == refused && !a.missing { // a session of this name exists
			break
		}
		if cluster.Sleep(ctx, probeInterval) != nil {
			return
		}
	}
	ends := s.user.turnEnds(ctx, id)
	for n := 0; ctx.Err() == nil; n++ {
		end, err := s.user.say(ctx, id, fmt.Sprintf("message %d at %s", n, time.Now()), ends)
		outcome := turnDone
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			outcome = turnUnknown
		case end.state == session.StateError && strings.Contains(end.reason, "spending limit of "):
			outcome = turnRefused
		case end.state == session.StateError:
			outcome = turnUnchecked
			s.explain(id, end.reason)
		}
		s.count(id, outcome)
		if outcome != turnDone {
			_ = cluster.Sleep(ctx, afterRefusal)
		}
	}
}

// explain reports a violation, unless the turn failed because the archive could not be reached.
func (s *spending) explain(id, reason string) {
	if !strings.Contains(reason, "cannot be checked") {
		s.installation.report.violation(checkLedger, "%s: a turn failed: %s", id, reason)
	}
}

func (s *spending) count(id, outcome string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns[outcome]++
	if outcome == turnRefused {
		s.refused[id] = true
	}
}

func (s *spending) allRefused(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.refused); n < s.sessions {
		return fmt.Errorf("the limit has stopped %d of %d sessions", n, s.sessions)
	}
	return nil
}

func (s *spending) usage(ctx context.Context, month string) (usage rest.Usage, err error) {
	a, content := s.user.http.send(ctx, http.MethodGet, "/api/usage?month="+month, nil, "")
	if a.outcome != accepted {
		return usage, fmt.Errorf("the usage could not be read: %s", content)
	}
	return usage, json.Unmarshal(content, &usage)
}

// sample reports a violation if the amounts of the current month exceed the limit.
func (s *spending) sample(ctx context.Context) {
	usage, err := s.usage(ctx, "")
	if err != nil {
		return // the facade or the archive was killed
	}
	used := amount(usage.Spent) + amount(usage.Reserved)
	if used > s.limit {
		s.installation.report.violation(checkLimit, "%s: $%s spent and reserved", usage.Month, used)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.highest = max(s.highest, used)
}

func amount(text string) session.Dollars {
	d, err := session.ParseDollars(text)
	if err != nil {
		panic(err) // the facade's amounts are valid
	}
	return d
}

// kill kills archives, facades and sessions at random, and changes the month several times.
func (s *spending) kill(ctx context.Context, o options, r *report, pods string) error {
	random := rand.New(rand.NewPCG(o.seed, 0))
	for n := range o.kills {
		if n%killsPerMonth == 0 {
			if err := s.changeMonth(ctx); err != nil {
				return err
			}
		}
		pause := shortestPause + time.Duration(random.Int64N(int64(longestPause-shortestPause)))
		if err := cluster.Sleep(ctx, pause); err != nil {
			return err
		}
		replica := random.IntN(replicas)
		switch dice := random.IntN(100); {
		case dice < 35:
			s.installation.archives[replica].kill()
			r.kill(archiveVictim, false)
		case dice < 55:
			s.installation.facades[replica].kill()
			r.kill("facade", false)
		default:
			err := cluster.Retry(ctx, probeInterval, func(context.Context) error { return killSession(pods, random) })
			if err != nil {
				return err
			}
			r.kill(sessionVictim, false)
		}
	}
	return nil
}

// killSession kills all processes of a random session, as the kernel does if a container uses too
// much memory.
func killSession(pods string, random *rand.Rand) error {
	dirs, err := filepath.Glob(pods)
	if err != nil {
		return err
	}
	if len(dirs) == 0 || node.Kill(dirs[random.IntN(len(dirs))]) == 0 {
		return errors.New("the chosen session does not run")
	}
	return nil
}

// changeMonth sets the clocks of the archives to shortly before the end of the month. The clock of
// the second archive is one second behind, so the month ends later there.
func (s *spending) changeMonth(ctx context.Context) error {
	usage, err := s.usage(ctx, "")
	for err != nil && cluster.Sleep(ctx, probeInterval) == nil {
		usage, err = s.usage(ctx, "")
	}
	if err != nil {
		return err
	}
	month, err := time.Parse("2006-01", usage.Month)
	if err != nil {
		return err
	}
	next := month.AddDate(0, 1, 0)
	s.say("the month %s ends", usage.Month)
	s.months = append(s.months, next.Format("2006-01"))
	for n := range replicas {
		end := next.Add(-beforeMonth - time.Duration(n)*time.Second)
		if err := s.installation.setClock(n, time.Until(end)); err != nil {
			return err
		}
	}
	return nil
}

// finish stops the clients, and then all sessions. A stopped session returns its reservation.
func (s *spending) finish(ctx context.Context, clients *load) error {
	clients.stop()
	s.say("the sessions stop")
	return cluster.Retry(ctx, settleInterval, func(ctx context.Context) error {
		var all v1alpha1.ConversationList
		if err := s.installation.admin.List(ctx, &all, client.InNamespace(spendNamespace)); err != nil {
			return err
		}
		running := 0
		for _, c := range all.Items {
			if c.Status.State != v1alpha1.StateStopped {
				running++
				_ = s.user.http.stop(ctx, &conversation{user: s.user, name: c.Name})
			}
		}
		if running > 0 {
			return fmt.Errorf("%d sessions have not stopped", running)
		}
		return nil
	})
}
