package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/cmd/agent/loop"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

const (
	beAgent = "PARLEY_TEST_BE_AGENT"
	// killAt is an environment variable: the number of records on disk at which the agent kills
	// itself with SIGKILL.
	killAt = "PARLEY_TEST_KILL_AT"
	// realTime is an environment variable that makes the agent wait in real time between retries.
	realTime    = "PARLEY_TEST_REAL_TIME"
	placeholder = "a-placeholder-for-the-key"
	timeout     = 30 * time.Second
)

// TestMain runs the agent instead of the tests if the variable beAgent is set.
func TestMain(m *testing.M) {
	if os.Getenv(beAgent) == "" {
		os.Exit(m.Run())
	}
	last, _ := strconv.Atoi(os.Getenv(killAt))
	err := run(os.Args[1:], os.Stdin, os.Stdout, func(o *loop.Options) {
		o.Synced = func(records int) {
			if records == last {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		if os.Getenv(realTime) == "" {
			o.Clock = &fastClock{now: time.Unix(0, 0)}
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// fastClock jumps forward instead of waiting.
type fastClock struct{ now time.Time }

func (c *fastClock) Now() time.Time { return c.now }

func (c *fastClock) Wait(ctx context.Context, d time.Duration) error {
	c.now = c.now.Add(d)
	return ctx.Err()
}

// apis maps the name of each API to a model that the agent calls through this API.
var apis = map[string]string{"messages": "anthropic/scripted", "chat completions": "openai/scripted"}

func onBothAPIs(t *testing.T, test func(t *testing.T, model string)) {
	for _, name := range slices.Sorted(maps.Keys(apis)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, apis[name])
		})
	}
}

// fixture is the environment of an agent: a home directory, a working directory and a scripted
// model.
type fixture struct {
	home, dir string
	model     *scriptedmodel.Server
	url       string
}

func newFixture(t *testing.T, steps ...scriptedmodel.Step) *fixture {
	t.Helper()
	return newScript(t, scriptedmodel.Script{Steps: steps})
}

func newScript(t *testing.T, script scriptedmodel.Script) *fixture {
	t.Helper()
	s := &fixture{home: t.TempDir(), dir: t.TempDir(), model: scriptedmodel.New(script)}
	server := httptest.NewServer(s.model)
	s.url = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		for _, violation := range s.model.Violations() {
			t.Error("the API would reject this:", violation)
		}
	})
	return s
}

func (s *fixture) file(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(content)
}

func (s *fixture) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

type client struct {
	t       *testing.T
	cmd     *exec.Cmd
	session string
	dir     string
	servers []acp.MCPServer
	// permit returns the user's decision on a permission request.
	permit func(acp.PermissionParams) string
	// meta is the _meta of the request for a new session. reason is the user's reason in responses
	// to permission requests.
	meta   acp.Meta
	reason string

	mu       sync.Mutex
	next     int
	pending  map[string]chan reply
	in       *json.Encoder
	updates  []json.RawMessage
	partial  strings.Builder
	retries  []*acp.Retry
	requests []acp.PermissionParams
	onUpdate chan struct{}
	exited   chan struct{}
}

type reply struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *acp.Error      `json:"error"`
}

var errExited = errors.New("the agent has exited")

func picture(t *testing.T, width, height int) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := png.Encode(&out, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// launch starts an agent; variables override the environment.
func (s *fixture) launch(t *testing.T, args []string, variables ...string) *client {
	t.Helper()
	c := &client{t: t, dir: s.dir, pending: map[string]chan reply{}, onUpdate: make(chan struct{}),
		exited: make(chan struct{}),
		permit: func(acp.PermissionParams) string { return acp.AllowOnce }}
	c.cmd = exec.Command(os.Args[0], append([]string{"--base-url", s.url}, args...)...)
	c.cmd.Env = append(os.Environ(), beAgent+"=yes", "HOME="+s.home, "LLM_API_KEY="+placeholder,
		"A_SECRET=value-of-the-secret")
	c.cmd.Env = append(c.cmd.Env, variables...)
	c.cmd.Stderr = os.Stderr
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.in = json.NewEncoder(stdin)
	go c.read(bufio.NewReader(stdout))
	t.Cleanup(func() {
		_ = stdin.Close()
		select {
		case <-c.exited:
		case <-time.After(timeout):
			t.Error("the agent does not exit after its client disconnected")
			_ = c.cmd.Process.Kill()
		}
	})
	return c
}

func (c *client) read(from *bufio.Reader) {
	defer func() {
		_ = c.cmd.Wait()
		close(c.exited)
	}()
	for {
		line, err := from.ReadBytes('\n')
		if err != nil {
			return
		}
		var m reply
		if err := json.Unmarshal(line, &m); err != nil {
			c.t.Errorf("the agent printed %q", line)
			return
		}
		switch m.Method {
		case "":
			c.mu.Lock()
			c.pending[string(m.ID)] <- m
			c.mu.Unlock()
		case acp.MethodUpdate:
			c.update(m.Params)
		case acp.MethodRequestPermission:
			go c.answer(m)
		}
	}
}

func (c *client) update(params json.RawMessage) {
	var p acp.UpdateParams
	var u struct {
		Content json.RawMessage `json:"content"`
		Meta    acp.Meta        `json:"_meta"`
	}
	var r struct {
		Meta struct {
			Retry *acp.Retry `json:"parley.dev/retry"`
		} `json:"_meta"`
	}
	if json.Unmarshal(params, &p) != nil || json.Unmarshal(p.Update, &u) != nil || json.Unmarshal(p.Update, &r) != nil {
		c.t.Errorf("invalid update: %s", params)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := u.Meta[acp.MetaRetry]; ok {
		c.retries = append(c.retries, r.Meta.Retry)
	} else if u.Meta[acp.MetaPartial] == true {
		var content acp.Content
		_ = json.Unmarshal(u.Content, &content)
		if content.Type == "text" && content.Text == "" { // an empty piece discards the earlier pieces
			c.partial.Reset()
		}
		c.partial.WriteString(content.Text)
	} else {
		if seq := u.Meta[acp.MetaSeq]; seq != float64(len(c.updates)+1) {
			c.t.Errorf("update %d has the number %v", len(c.updates)+1, seq)
		}
		c.updates = append(c.updates, p.Update)
	}
	close(c.onUpdate)
	c.onUpdate = make(chan struct{})
}

func (c *client) answer(m reply) {
	var p acp.PermissionParams
	_ = json.Unmarshal(m.Params, &p)
	c.mu.Lock()
	c.requests = append(c.requests, p)
	c.mu.Unlock()
	outcome := map[string]any{"outcome": "selected", "optionId": c.permit(p)}
	c.send(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": map[string]any{"outcome": outcome,
		"_meta": acp.Meta{acp.MetaReason: c.reason}}})
}

func (c *client) send(v any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.in.Encode(v) // if the agent has exited, the reader of its output reports that
}

// start sends a request and returns a function that waits for the response.
func (c *client) start(method string, params any) func(result any) error {
	answer := make(chan reply, 1)
	c.mu.Lock()
	c.next++
	id := c.next
	c.pending[strconv.Itoa(id)] = answer
	c.mu.Unlock()
	c.send(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	return func(result any) error {
		select {
		case m := <-answer:
			if m.Error != nil {
				return m.Error
			}
			return json.Unmarshal(m.Result, result)
		case <-c.exited:
			return errExited
		case <-time.After(timeout):
			c.t.Errorf("no answer to %s", method)
			return errors.New("no answer")
		}
	}
}

func (c *client) call(method string, params, result any) error {
	return c.start(method, params)(result)
}

func (c *client) open() error {
	var hello acp.InitializeResult
	if err := c.call(acp.MethodInitialize, map[string]any{"protocolVersion": 1}, &hello); err != nil {
		return err
	}
	var created acp.NewSessionResult
	err := c.call(acp.MethodNewSession, c.params(), &created)
	c.session = created.SessionID
	return err
}

func (c *client) params() acp.SessionParams {
	servers := c.servers
	if servers == nil {
		servers = []acp.MCPServer{}
	}
	return acp.SessionParams{SessionID: c.session, Cwd: c.dir, MCPServers: servers, Meta: c.meta}
}

func (c *client) mustOpen() *client {
	c.t.Helper()
	if err := c.open(); err != nil {
		c.t.Fatal(err)
	}
	return c
}

func (c *client) promptWith(meta acp.Meta, content ...acp.Content) func() (acp.StopReason, error) {
	wait := c.start(acp.MethodPrompt, acp.PromptParams{SessionID: c.session, Prompt: content, Meta: meta})
	return func() (acp.StopReason, error) {
		var result acp.PromptResult
		err := wait(&result)
		return result.StopReason, err
	}
}

func (c *client) prompt(text string) (acp.StopReason, error) {
	return c.promptWith(nil, *acp.Text(text))()
}

func (c *client) mustPrompt(text string) {
	c.t.Helper()
	if reason, err := c.prompt(text); err != nil || reason != acp.EndTurn {
		c.t.Fatalf("the turn ended with %q, %v", reason, err)
	}
}

func (c *client) received() []json.RawMessage {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.updates)
}

// find returns the updates that contain all these words.
func (c *client) find(words ...string) (found []string) {
	for _, update := range c.received() {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(string(update), w) }) {
			found = append(found, string(update))
		}
	}
	return found
}

// eventually polls a condition, because changes of files and processes send no signal.
func eventually(t *testing.T, goal string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(timeout); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting until %s", goal)
		}
	}
}

func bash(command string) scriptedmodel.Call {
	return scriptedmodel.Call{Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{"command": command})}
}

func editor(input map[string]any) scriptedmodel.Call {
	return scriptedmodel.Call{Name: "str_replace_editor", Input: scriptedmodel.Input(input)}
}

func says(text string) scriptedmodel.Step { return scriptedmodel.Step{Text: text} }

func calls(calls ...scriptedmodel.Call) scriptedmodel.Step { return scriptedmodel.Step{Calls: calls} }

func failing(kind scriptedmodel.FailureKind, times int) scriptedmodel.Step {
	return scriptedmodel.Step{Failure: &scriptedmodel.Failure{Kind: kind}, Times: times}
}
