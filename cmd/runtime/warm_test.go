package main_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// warmPod is the environment of a warm pod.
type warmPod struct {
	*pod
	key  []byte
	bind session.Bind
}

// warm() turns a pod into a warm pod, which has only its own key. The document and the
// secrets come with the Bind.
func warm(t *testing.T, p *pod) *warmPod {
	t.Helper()
	w := &warmPod{pod: p, key: []byte("canary-bind-" + rand.Text()[:20]), bind: session.Bind{UID: "u1", Attempt: 1}}
	p.doc.UID, p.doc.PublicKey = "u1", facadeKey.Public().(ed25519.PublicKey)
	w.bind.Data = map[string][]byte{session.DocumentFile: w.document(t)}
	for key, value := range p.secrets {
		w.bind.Data[key] = []byte(value)
	}
	p.secrets = map[string]string{session.BindKeyFile: base64.StdEncoding.EncodeToString(w.key)}
	if err := os.RemoveAll(p.dir); err != nil {
		t.Fatal(err)
	}
	return w
}

func (p *warmPod) document(t *testing.T) []byte {
	t.Helper()
	text, err := json.Marshal(p.doc)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// sealed applies a change to a copy of the Bind, and returns the copy in its sealed form.
func (p *warmPod) sealed(t *testing.T, change func(*session.Bind)) []byte {
	t.Helper()
	bind := p.bind
	bind.Data = maps.Clone(bind.Data)
	if change != nil {
		change(&bind)
	}
	text, err := session.SealBind(p.key, &bind)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// send sends a sealed Bind. The answer is nil if the Bind was refused.
func (p *warmPod) send(t *testing.T, query string, sealed []byte) (code int, bound *session.Bound) {
	t.Helper()
	response, err := http.Post("http://"+p.address+session.BindPath+query, "application/octet-stream",
		bytes.NewReader(sealed))
	if err != nil {
		t.Errorf("the Bind is not answered: %v", err)
		return 0, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	if response.StatusCode == http.StatusOK {
		if bound, err = session.OpenBound(p.key, sealed, text); err != nil {
			t.Errorf("the answer does not open: %v", err)
		}
	}
	return response.StatusCode, bound
}

// start starts the pod and waits until it is ready for a Bind.
func (p *warmPod) start(t *testing.T) {
	t.Helper()
	p.pod.start(t)
	p.waitReady(t)
}

func (p *warmPod) bindReady(t *testing.T) {
	t.Helper()
	code, bound := p.send(t, "?wait", p.sealed(t, nil))
	if code != http.StatusOK || *bound != (session.Bound{UID: p.bind.UID, Attempt: p.bind.Attempt, Ready: true}) {
		t.Fatalf("the Bind is answered with %d: %+v", code, bound)
	}
}

func TestAWarmPodAnswersOnlyHealthProbesUntilItIsBound(t *testing.T) {
	t.Parallel()
	p := warm(t, newPod(t, session.Document{}))
	p.start(t)
	for path, want := range map[string]int{
		session.AlivePath: http.StatusOK, session.ReadyPath: http.StatusOK, session.AwaitReadyPath: http.StatusOK,
		session.StatusPath: http.StatusServiceUnavailable, session.EventsPath: http.StatusServiceUnavailable,
		session.ToolsPath: http.StatusServiceUnavailable, "/": http.StatusServiceUnavailable,
	} {
		if code, _ := p.get(t, path, "Authorization", "Bearer "+secretValues[session.KeyFile]); code != want {
			t.Errorf("%s is answered with %d, want %d", path, code, want)
		}
	}
	p.bindReady(t)
	if got := p.status(t); !got.Ready || got.Conversation != "hello" {
		t.Errorf("the status is %+v", got)
	}
	if code, _ := p.get(t, session.StatusPath); code != http.StatusUnauthorized {
		t.Errorf("without a key, the status is answered with %d", code)
	}
}

func TestAWarmPodRefusesInvalidBindRequests(t *testing.T) {
	t.Parallel()
	p := warm(t, newPod(t, session.Document{}))
	p.start(t)
	stranger := &warmPod{key: []byte(rand.Text()[:20] + "            "), bind: p.bind}
	for name, c := range map[string]struct {
		sealed []byte
		want   int
	}{
		"empty":              {nil, http.StatusForbidden},
		"garbage":            {[]byte(strings.Repeat("x", 1000)), http.StatusForbidden},
		"another key":        {stranger.sealed(t, nil), http.StatusForbidden},
		"too large":          {make([]byte, session.MaxBind+1), http.StatusRequestEntityTooLarge},
		"another document":   {p.sealed(t, func(b *session.Bind) { b.UID = "u2" }), http.StatusForbidden},
		"no document":        {p.sealed(t, func(b *session.Bind) { b.Data = nil }), http.StatusForbidden},
		"no attempt":         {p.sealed(t, func(b *session.Bind) { b.Attempt = 0 }), http.StatusForbidden},
		"invalid cert":       {p.sealed(t, certified("x")), http.StatusForbidden},
		"the largest it may": {make([]byte, session.MaxBind), http.StatusForbidden},
	} {
		if code, _ := p.send(t, "", c.sealed); code != c.want {
			t.Errorf("%s: the answer is %d, want %d", name, code, c.want)
		}
	}
	p.bindReady(t) // no foreign Bind has bound the pod
}

func certified(text string) func(*session.Bind) {
	return func(b *session.Bind) { b.Data[session.ServerCertificateFile] = []byte(text) }
}

func TestSlowUnauthenticatedRequestsDoNotDelayABindRequest(t *testing.T) {
	t.Parallel()
	p := warm(t, newPod(t, session.Document{}))
	p.start(t)
	for range 20 {
		stranger, err := net.Dial("tcp", p.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stranger.Close() })
		if _, err := stranger.Write([]byte("POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the pod is bound", func() bool {
		code, _ := p.send(t, "?wait", p.sealed(t, nil))
		return code == http.StatusOK
	})
}

func TestARepeatedBindRequestGetsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	p := warm(t, newPod(t, session.Document{FirstMessage: "go", Agent: agent(counting)}))
	p.start(t)
	var binding sync.WaitGroup
	for range 10 {
		binding.Go(func() {
			code, bound := p.send(t, "?wait", p.sealed(t, nil))
			if code != http.StatusOK || *bound != (session.Bound{UID: "u1", Attempt: 1, Ready: true}) {
				t.Errorf("a concurrent Bind is answered with %d: %+v", code, bound)
			}
		})
	}
	binding.Wait()
	p.bindReady(t)
	eventually(t, "the agent runs", func() bool { return p.runs(t) > 0 })
	if runs := p.runs(t); runs != 1 {
		t.Errorf("the agent runs %d times", runs)
	}
	for name, change := range map[string]func(*session.Bind){
		"another session": func(b *session.Bind) { b.UID = "u2" },
		"a later attempt": func(b *session.Bind) { b.Attempt = 2 },
	} {
		if code, _ := p.send(t, "", p.sealed(t, change)); code != http.StatusConflict {
			t.Errorf("%s: the answer is %d", name, code)
		}
	}
}

func TestAPodStaysReadyIfItPreparesItsSessionWithinTheProbeTimeout(t *testing.T) {
	t.Parallel()
	servers, arrival := toolServers(), filepath.Join(t.TempDir(), "go")
	servers.Stdio[0].Env = append(servers.Stdio[0].Env, session.EnvVar{Name: waitVariable, Value: arrival})
	p := warm(t, newPod(t, session.Document{ToolServers: servers}))
	p.start(t)
	if code, bound := p.send(t, "", p.sealed(t, nil)); code != http.StatusOK || bound.Ready {
		t.Fatalf("the Bind is answered with %d: %+v", code, bound)
	}
	probed := make(chan int)
	go func() {
		code, _ := p.get(t, session.AwaitReadyPath)
		probed <- code
	}()
	if code, _ := p.get(t, session.ReadyPath); code != http.StatusServiceUnavailable {
		t.Errorf("before the session is ready, the answer is %d", code)
	}
	write(t, arrival, "")
	if code := <-probed; code != http.StatusOK {
		t.Errorf("a waiting probe is answered with %d", code)
	}
	p.bindReady(t)
}

func TestARestartedContainerAcceptsOnlyItsEarlierSession(t *testing.T) {
	t.Parallel()
	p := warm(t, newPod(t, session.Document{FirstMessage: "go", Agent: agent(counting)}))
	p.start(t)
	p.killSession(t) // before the first Bind
	p.start(t)
	p.bindReady(t)
	eventually(t, "the agent runs", func() bool { return p.runs(t) == 1 })
	p.killSession(t)
	p.pod.start(t)
	eventually(t, "the runtime runs", func() bool {
		code, _ := p.get(t, session.AlivePath)
		return code == http.StatusOK
	})
	for _, path := range []string{session.ReadyPath, session.StatusPath} {
		if code, _ := p.get(t, path); code != http.StatusServiceUnavailable {
			t.Errorf("%s is answered with %d", path, code)
		}
	}
	for name, change := range map[string]func(*session.Bind){
		"another session": func(b *session.Bind) {
			b.UID = "u2"
			b.Data[session.DocumentFile] = []byte(`{"uid":"u2","firstMessage":"go"}`)
		},
		"a later attempt": func(b *session.Bind) { b.Attempt = 2 },
	} {
		if code, _ := p.send(t, "", p.sealed(t, change)); code != http.StatusConflict {
			t.Errorf("%s: the answer is %d", name, code)
		}
	}
	if code, _ := p.send(t, "", p.sealed(t, nil)); code != http.StatusOK {
		t.Errorf("the same session is answered with %d", code)
	}
	// The restarted runtime does not repeat the interrupted command. A cold pod behaves the same.
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonFailed ||
		!strings.Contains(got.Message, "interrupted") || p.runs(t) != 1 {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

func TestAWarmPodCanBeStoppedBeforeItHasASession(t *testing.T) {
	t.Parallel()
	p := warm(t, newPod(t, session.Document{}))
	p.start(t)
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, _ := p.wait(t); code != 128+int(syscall.SIGTERM) {
		t.Errorf("it ended with status %d", code)
	}
}

func TestABoundSessionAcceptsTokensOverTLSOnly(t *testing.T) {
	t.Parallel()
	company := newAuthority(t)
	der, key := sign(t, &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"u1"}}, company.certificate, company.key)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	p := warm(t, newPod(t, session.Document{}))
	p.bind.Data[session.ServerCertificateFile] = append(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})...)
	p.start(t)
	roots := x509.NewCertPool()
	roots.AddCert(company.certificate)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "u1",
		MinVersion: tls.VersionTLS13}}}
	token, err := session.SignToken(facadeKey, session.Claims{Audience: session.AudienceSession, UID: "u1",
		Expires: time.Now().Add(time.Minute).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(scheme string) (code int) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, scheme+p.address+session.UsagePath, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(session.TokenHeader, token)
		response, err := client.Do(request)
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	if code := ask("https://"); code != 0 {
		t.Errorf("before the Bind, the answer is %d", code)
	}
	p.bindReady(t)
	if secure, plain := ask("https://"), ask("http://"); secure != http.StatusOK || plain != http.StatusUnauthorized {
		t.Errorf("the answers are %d over TLS and %d without", secure, plain)
	}
}

func TestABindRequestIsAnsweredEvenIfTheSessionCannotStart(t *testing.T) {
	t.Parallel()
	p := warm(t, newPod(t, session.Document{Repository: &session.Repository{Name: repository(t), Branch: "none"}}))
	p.start(t)
	code, bound := p.send(t, "?wait", p.sealed(t, nil))
	if code != http.StatusOK || *bound != (session.Bound{UID: "u1", Attempt: 1}) {
		t.Errorf("the Bind is answered with %d: %+v", code, bound)
	}
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonFailed {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

// A process reads its authorities one time, so a warm pod must not read them before the Bind.
func TestABoundSessionTrustsTheAuthoritiesOfItsClass(t *testing.T) {
	t.Parallel()
	company := newAuthority(t)
	p := warm(t, newPod(t, session.Document{CABundle: company.pem,
		Repository: &session.Repository{Name: company.gitServer(t)}}))
	p.start(t)
	p.bindReady(t)
	if got := p.status(t); got.Workspace.Branch != "main" {
		t.Errorf("the workspace is %+v", got.Workspace)
	}
}

func TestABoundSessionDoesNotRepeatTheWorkOfAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	p := warm(t, newPod(t, session.Document{FirstMessage: "go", Agent: agent("true")}))
	p.bind.Attempt, p.bind.RanAttempt = 3, 2
	p.start(t)
	if code, _ := p.send(t, "", p.sealed(t, nil)); code != http.StatusOK {
		t.Errorf("the Bind is answered with %d", code)
	}
	if _, got := p.wait(t); got.Reason != v1alpha1.ReasonFailed || !strings.Contains(got.Message,
		"An earlier attempt of this session may have worked on this message") {
		t.Errorf("it ended with %+v", got)
	}
}

func TestAnAgentGetsTheSameVariablesInWarmAndColdPods(t *testing.T) {
	t.Parallel()
	doc := session.Document{UID: "u1", PublicKey: facadeKey.Public().(ed25519.PublicKey), FirstMessage: "go",
		Agent: showing(), CustomSecrets: []session.CustomSecret{{Name: "MINE", ValueFile: "custom.0"}}}
	variables := func(p *pod) map[string]string {
		p.agentVariable(t, "PATH") // wait for the agent
		text, err := os.ReadFile(filepath.Join(p.workspace, "env"))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{}
		for line := range strings.Lines(strings.ReplaceAll(string(text), filepath.Dir(p.workspace), "")) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			found[name] = strings.ReplaceAll(value, p.address, "")
		}
		delete(found, "LLM_BASE_URL") // its port differs between pods
		delete(found, "PARLEY_MCP_URL")
		return found
	}
	cold := newPod(t, doc)
	bound := warm(t, newPod(t, doc))
	text := bound.document(t)
	cold.image = []string{session.DocumentDigestVariable + "=" + session.DocumentDigest(text), "PARLEY_ATTEMPT=2"}
	bound.bind.Attempt = 2
	cold.start(t)
	bound.start(t)
	bound.bindReady(t)
	want, got := variables(cold), variables(bound.pod)
	delete(want, "PARLEY_SESSION_DIR")
	if read, err := os.ReadFile(filepath.Join(filepath.Dir(bound.workspace), got["PARLEY_SESSION_DIR"],
		session.DocumentFile)); err != nil || !bytes.Equal(read, text) {
		t.Errorf("the agent reads the document %q, %v", read, err)
	}
	delete(got, "PARLEY_SESSION_DIR")
	if !maps.Equal(got, want) {
		t.Errorf("the variables are\n%v\nwant\n%v", got, want)
	}
}

// warmPodForSecondAttempt runs the first attempt of a session in a cold pod. It returns a warm pod
// for the second attempt, with an empty workspace.
func warmPodForSecondAttempt(t *testing.T) (*scratchPod, *warmPod) {
	t.Helper()
	s := newScratchPod(t, session.Document{})
	s.begin(t)
	s.waitReady(t)
	s.sh(t, "echo done > work")
	s.stop(t)
	s.empty(t)
	s.image = nil
	w := warm(t, s.pod)
	w.bind.Attempt, w.bind.RanAttempt = 2, 1
	return s, w
}

func TestAWarmPodRestoresAnEarlierAttempt(t *testing.T) {
	t.Parallel()
	for name, failures := range map[string]int32{"at once": 0, "after failed requests": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, w := warmPodForSecondAttempt(t)
			left := atomic.Int32{}
			left.Store(failures)
			intercept := func(response http.ResponseWriter, _ *http.Request) bool {
				if left.Add(-1) < 0 {
					return false
				}
				response.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			s.intercept.Store(&intercept)
			w.start(t)
			w.bindReady(t)
			if got := s.sh(t, "cat work"); got != "done" {
				t.Errorf("the restored file contains %q", got)
			}
		})
	}
}

// The archive begins to send the journal, but does not finish.
func TestASessionStopsWhileItWaitsForItsJournal(t *testing.T) {
	t.Parallel()
	s, w := warmPodForSecondAttempt(t)
	over, requested := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(requested) })
	intercept := func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, session.ArchiveEvents) {
			return false
		}
		_ = http.NewResponseController(w).Flush()
		once()
		<-over
		return true
	}
	s.intercept.Store(&intercept)
	t.Cleanup(func() { close(over) })
	w.start(t)
	if code, bound := w.send(t, "", w.sealed(t, nil)); code != http.StatusOK || bound.Ready {
		t.Fatalf("the Bind is answered with %d: %+v", code, bound)
	}
	<-requested
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, _ := w.wait(t); code != 128+int(syscall.SIGTERM) {
		t.Errorf("the session ended with status %d", code)
	}
}
