package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
	"github.com/parley-dev/parley/hack/local/parley"
)

const (
	// Each kind of start is measured in two rounds. In the first round, one session starts at a
	// time. In the second round, crowdSize sessions start at a time.
	crowdSize  = 20
	startLimit = time.Minute
	fileCount  = 100
)

// Names of the kinds of starts.
const (
	kindBare   = "bare pod, until Ready"
	kindOwn    = "cold, Parley's own image"
	kindCopied = "cold, runtime copied"
	kindMount  = "cold, runtime mounted"
	kindWarm   = "warm, without a repository"
	kindHTTP   = "warm, without a repository, over HTTP"
	kindRepo   = "warm, repository of 100 files, class volume"
	// Sessions without a message do nothing after their start, like bare pods. Sessions with a message
	// work while others still start.
	kindSilent     = "warm, without a repository or message"
	kindRepoSilent = "warm, repository, class volume, no message"
	kindWake       = "wake from a snapshot, by a message"
)

// The type starts measures how long several kinds of starts take.
type starts struct {
	*t
	user    *user
	repo    repository
	running *moments
	model   *working
	taken   map[string]*[2]startTimes // keyed by kind; element 0: one start at a time, element 1: several
}

// startTimes holds the times from the request until RUNNING, and until the model has the result of
// the first tool call.
type startTimes struct{ running, called []time.Duration }

type startKind struct {
	name string
	// class() configures the SessionClass of this kind of start. It is nil if the kind
	// needs no SessionClass. pool is the number of warm pods of the SessionClass.
	class func(*v1alpha1.SessionClassSpec)
	pool  int32
	// prepare runs before a start is measured. begin requests the start.
	prepare, begin func(ctx context.Context, class, name string) error
	// attempt and turn are the numbers of the attempt and of the turn that the start begins. turn
	// is 0 if the start begins no turn.
	attempt int32
	turn    int
}

func (t *t) newStarts() *starts {
	s := &starts{t: t, user: t.newUser(), taken: map[string]*[2]startTimes{}}
	var baseURL string
	s.model, baseURL = t.workingModel()
	t.post(s.user, "/api/settings", rest.Settings{LLMModel: rest.Set("scripted/model"),
		LLMAPIKey: rest.NewKey(secretValue()), LLMBaseURL: rest.Set(baseURL)}, &rest.Stored{})
	s.repo = t.manyFiles()
	s.running = t.watchRunning(s.user.namespace)
	return s
}

func (s *starts) kinds() []startKind {
	mounted := func(c *v1alpha1.SessionClassSpec) { c.Images.Runtime = v1alpha1.RuntimeMount }
	withVolume := func(c *v1alpha1.SessionClassSpec) {
		mounted(c)
		c.Workspace = &v1alpha1.ClassWorkspace{Workspace: v1alpha1.Workspace{Size: "1Gi"}}
	}
	// Do not measure the two kinds with clones one directly after the other, because deleted clones
	// make new clones slow: see mountDisks.
	return []startKind{
		{name: kindBare, begin: s.beginPod, attempt: 1},
		{name: kindOwn, class: func(c *v1alpha1.SessionClassSpec) { c.Images = nil }, begin: s.create(nil, false),
			attempt: 1},
		{name: kindCopied, class: func(*v1alpha1.SessionClassSpec) {}, begin: s.create(nil, true), attempt: 1, turn: 1},
		{name: kindMount, class: mounted, begin: s.create(nil, true), attempt: 1, turn: 1},
		{name: kindWarm, class: mounted, pool: int32(s.samples), begin: s.create(nil, true), attempt: 1, turn: 1},
		{name: kindHTTP, class: mounted, pool: int32(s.samples), prepare: s.useClass, begin: s.beginOverHTTP, attempt: 1,
			turn: 1},
		{name: kindRepo, class: withVolume, pool: int32(s.samples), begin: s.create(&s.repo, true), attempt: 1, turn: 1},
		{name: kindSilent, class: mounted, pool: int32(s.samples), begin: s.create(nil, false), attempt: 1},
		{name: kindWake, class: mounted, pool: int32(s.samples), prepare: s.sleep, begin: s.wake, attempt: 2, turn: 2},
		{name: kindRepoSilent, class: withVolume, pool: int32(s.samples), begin: s.create(&s.repo, false), attempt: 1},
	}
}

func warmStarts(t *t) {
	if t.samples == 0 {
		t.Skip("make e2e-warm measures warm starts")
	}
	s := t.newStarts()
	for i, k := range s.kinds() {
		s.taken[k.name] = &[2]startTimes{}
		class := fmt.Sprintf("starts-%d", i)
		if k.class != nil {
			remove := t.makeClass(class, func(spec *v1alpha1.SessionClassSpec) {
				allowMany(spec)
				k.class(spec)
				if k.pool > 0 {
					spec.Warm = &v1alpha1.WarmPods{Size: k.pool, NamespaceSelector: ofNamespace(s.user.namespace)}
				}
			})
			defer remove()
		}
		t.must(s.measureKind(k, class))
		t.must(s.endPool(class))
		t.say("measured: %s", k.name)
	}
	s.report()
}

func allowMany(spec *v1alpha1.SessionClassSpec) {
	spec.Resources = &v1alpha1.SessionResources{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("5m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}}
	spec.MaxSessionsPerUser, spec.MaxConversationsPerUser = ptr.To[int32](1000), ptr.To[int32](10_000)
}

func ofNamespace(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
}

// measureKind measures both rounds of a kind, and then removes all sessions. A removal between two
// starts would make the next clone slow: see mountDisks.
func (s *starts) measureKind(k startKind, class string) error {
	var started []string
	for round, atATime := range []int{1, crowdSize} {
		var names []string
		for i := range s.samples {
			names = append(names, fmt.Sprintf("%s-%d-%d", class, round, i))
		}
		if atATime > 1 {
			if err := s.prepareAll(k, class, names); err != nil {
				return err
			}
		}
		results := make([][2]time.Duration, len(names))
		group, ctx := errgroup.WithContext(s.ctx)
		group.SetLimit(atATime)
		for i, name := range names {
			group.Go(func() (err error) {
				if atATime == 1 {
					if err := s.prepareAll(k, class, names[i:i+1]); err != nil {
						return err
					}
				}
				results[i], err = s.measureStart(ctx, k, class, name)
				return err
			})
		}
		err := group.Wait()
		for _, r := range results {
			taken := &s.taken[k.name][round]
			taken.running = append(taken.running, r[0])
			if k.turn > 0 {
				taken.called = append(taken.called, r[1])
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		started = append(started, names...)
	}
	return s.remove(s.ctx, started...)
}

// prepareAll prepares a start for each name, and then waits until the pool is full and the node is
// idle.
func (s *starts) prepareAll(k startKind, class string, names []string) error {
	if k.prepare != nil {
		group, ctx := errgroup.WithContext(s.ctx)
		group.SetLimit(5)
		for _, name := range names {
			group.Go(func() error { return k.prepare(ctx, class, name) })
		}
		if err := group.Wait(); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	if err := s.awaitPool(class, int(k.pool)); err != nil {
		return err
	}
	awaitIdleNode(s.ctx)
	return nil
}

func (s *starts) measureStart(ctx context.Context, k startKind, class, name string) (took [2]time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	began := time.Now()
	if err := k.begin(ctx, class, name); err != nil {
		return took, err
	}
	at, err := s.running.await(ctx, attemptKey(name, k.attempt))
	if err != nil {
		return took, fmt.Errorf("%w: %s", err, s.describe(name))
	}
	took[0] = at.Sub(began)
	if k.turn > 0 {
		at, err = s.model.called.await(ctx, turnOf(name, k.turn))
		took[1] = at.Sub(began)
	}
	if err == nil && k.turn == 2 && !strings.Contains(s.model.result(turnOf(name, k.turn)), "first turn") {
		err = fmt.Errorf("%s: the file of the first turn is missing", name)
	}
	return took, err
}

func turnOf(name string, turn int) string { return fmt.Sprintf("%s turn %d", name, turn) }

func (s *starts) describe(name string) string {
	c := &v1alpha1.Conversation{}
	_ = s.client.Get(s.ctx, client.ObjectKey{Namespace: s.user.namespace, Name: name}, c)
	return fmt.Sprintf("%s, %s: %s", c.Status.State, c.Status.Reason, c.Status.Message)
}

func (s *starts) beginPod(ctx context.Context, _, name string) error {
	return s.client.Create(ctx, barePod(s.user.namespace, name))
}

// create returns a function that creates a Conversation. repo may be nil. A message starts the agent,
// which needs a shell. Parley's own image has none.
func (s *starts) create(repo *repository, withMessage bool) func(ctx context.Context, class, name string) error {
	return func(ctx context.Context, class, name string) error {
		spec := v1alpha1.ConversationSpec{SessionClassName: &class}
		if repo != nil {
			spec.Repository, spec.SelectedBranch = &repo.url, &repo.branch
		}
		if withMessage {
			spec.InitialUserMsg = ptr.To(task(name, 1))
		}
		return s.client.Create(ctx, &v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Namespace: s.user.namespace,
			Name: name}, Spec: spec})
	}
}

// useClass makes the class the default of the user's conversations.
func (s *starts) useClass(ctx context.Context, class, _ string) error {
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: s.user.namespace, Name: "default"}}
	return s.client.Patch(ctx, settings, client.RawPatch(types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"sessionClassName":%q}}`, class)))
}

func (s *starts) beginOverHTTP(ctx context.Context, _, name string) error {
	return s.send(ctx, "/api/conversations", rest.ConversationRequest{ConversationID: &name,
		InitialUserMsg: ptr.To(task(name, 1))})
}

// sleep lets a session work on its first message, and then stops the session.
func (s *starts) sleep(ctx context.Context, class, name string) error {
	if err := s.create(nil, true)(ctx, class, name); err != nil {
		return err
	}
	if _, err := s.model.called.await(ctx, turnOf(name, 1)); err != nil {
		return err
	}
	return s.stopSession(ctx, name)
}

// stopSession stops a session over HTTP and waits until its pod is gone.
func (s *starts) stopSession(ctx context.Context, name string) error {
	if err := s.send(ctx, "/api/conversations/"+name+"/stop", struct{}{}); err != nil {
		return err
	}
	return retry(ctx, func(ctx context.Context) error {
		c := &v1alpha1.Conversation{}
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.user.namespace, Name: name}, c); err != nil {
			return err
		}
		if c.Status.State != v1alpha1.StateStopped {
			return fmt.Errorf("%s is %s, %s", name, c.Status.State, c.Status.Reason)
		}
		return s.podsGone(ctx, name)
	})
}

func (s *starts) wake(ctx context.Context, _, name string) error {
	return s.send(ctx, "/api/conversations/"+name+"/message", map[string]string{"message": task(name, 2)})
}

// send sends a request to the facade. It repeats a request that the facade did not accept.
func (s *starts) send(ctx context.Context, path string, body any) error {
	return retry(ctx, func(ctx context.Context) error {
		var answer any
		return parley.Send(ctx, http.DefaultClient, http.MethodPost, s.facadeURL()+path, s.user.key, body, &answer)
	})
}

func (s *starts) remove(ctx context.Context, names ...string) error {
	named := metav1.ObjectMeta{Namespace: s.user.namespace}
	for _, named.Name = range names {
		for _, o := range []client.Object{&v1alpha1.Conversation{ObjectMeta: named}, &corev1.Pod{ObjectMeta: named}} {
			if err := client.IgnoreNotFound(s.client.Delete(ctx, o)); err != nil {
				return err
			}
		}
	}
	return retry(ctx, func(ctx context.Context) error { return s.podsGone(ctx, names...) })
}

// podsGone returns an error if a session with one of these names has a pod, or if a bare pod has
// one of these names.
func (s *starts) podsGone(ctx context.Context, names ...string) error {
	pods := &corev1.PodList{}
	if err := s.client.List(ctx, pods, client.InNamespace(s.user.namespace)); err != nil {
		return err
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		owner := pod.Name
		if o := metav1.GetControllerOfNoCopy(pod); o != nil {
			owner = o.Name
		}
		if slices.Contains(names, owner) {
			return fmt.Errorf("the pod %s still exists", pod.Name)
		}
	}
	return nil
}

func (s *starts) awaitPool(class string, size int) error {
	return retry(s.ctx, func(ctx context.Context) error {
		pods, err := s.warmPods(ctx, class)
		ready := 0
		for i := range pods {
			if isReady(&pods[i]) {
				ready++
			}
		}
		if err == nil && ready < size {
			err = fmt.Errorf("%d of %d warm pods of the class %s are ready", ready, size, class)
		}
		return err
	})
}

// warmPods returns those warm pods of a class that have no session.
func (t *t) warmPods(ctx context.Context, class string) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	err := t.client.List(ctx, pods, client.HasLabels{v1alpha1.LabelWarm},
		client.MatchingLabels{v1alpha1.LabelSessionClass: class})
	return slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		owner := metav1.GetControllerOfNoCopy(&p)
		return owner == nil || owner.Kind != "SessionClass"
	}), err
}

// endPool removes the warm pods of a class, so that they do not disturb later samples.
func (s *starts) endPool(class string) error {
	c := &v1alpha1.SessionClass{}
	if err := s.client.Get(s.ctx, client.ObjectKey{Name: class}, c); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := c.DeepCopy()
	c.Spec.Warm = nil
	if err := s.client.Patch(s.ctx, c, client.MergeFrom(before)); err != nil {
		return err
	}
	return retry(s.ctx, func(ctx context.Context) error {
		left, err := s.warmPods(ctx, class)
		if err == nil && len(left) > 0 {
			err = errors.New("warm pods of a class without a pool still exist")
		}
		return err
	})
}

// awaitIdleNode waits until the machine is mostly idle, but at most ten seconds.
func awaitIdleNode(ctx context.Context) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		idle, total := cpuTimes()
		if cluster.Sleep(ctx, 300*time.Millisecond) != nil {
			return
		}
		idleNow, totalNow := cpuTimes()
		if (idleNow-idle)/(totalNow-total) > 0.8 {
			return
		}
	}
}

// cpuTimes returns the machine's idle time and its total time, in ticks.
func cpuTimes() (idle, total float64) {
	stat, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(stat), "\n")
	for i, field := range strings.Fields(line)[1:] {
		var ticks float64
		_, _ = fmt.Sscan(field, &ticks)
		total += ticks
		if i == 3 || i == 4 { // idle and iowait
			idle += ticks
		}
	}
	return idle, total
}
