package main_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/supervise"
	"github.com/parley-dev/parley/hack/test/sessionclient"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// limitedFor is how long the scripted model refuses requests in the rate limit test. The default is
// 0, which keeps the test fast.
var limitedFor, _ = time.ParseDuration(os.Getenv("PARLEY_RATE_LIMIT"))

var patience = waitingTime()

// waitingTime returns how long a test waits for a condition. The race detector makes the processing
// of large images many times slower.
func waitingTime() time.Duration {
	patience := 30*time.Second + 2*limitedFor
	if testenv.Race {
		patience *= 4
	}
	return patience
}

const (
	serverVariable = "TOOL_SERVER"
	waitVariable   = "TOOL_SERVER_WAITS_FOR" // contains the path of a file
)

// secretValues are the secrets of all test sessions, by the names of their entries in the session's
// Secret.
var secretValues = map[string]string{
	session.KeyFile: "session-key-0123456789", session.LLMAPIKeyFile: "sk-llm-0123456789",
	session.ProviderTokenFile: "ghp_0123456789abcdef",
	"custom.0":                "custom-0123456789",
}

// The test binary is also the sessions' stdio tool server, the hostile agent, and the first process
// of a container.
func TestMain(m *testing.M) {
	if root := os.Getenv(rootVariable); root != "" {
		fmt.Fprintln(os.Stderr, superviseIn(root)) // returns only on failure
		os.Exit(1)
	}
	if report := os.Getenv(reportVariable); report != "" {
		beHostile(report)
		os.Exit(0)
	}
	if os.Getenv(serverVariable) == "" {
		code := m.Run()
		if path, err := program(); err == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		os.Exit(code)
	}
	for file := os.Getenv(waitVariable); file != ""; <-time.After(5 * time.Millisecond) {
		if _, err := os.Stat(file); err == nil {
			break
		}
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "where"}, func(context.Context, *mcp.CallToolRequest,
		struct{}) (*mcp.CallToolResult, any, error) {
		dir, err := os.Getwd()
		text := fmt.Sprintf("%s %q", dir, os.Getenv("LLM_API_KEY"))
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, err
	})
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// program builds the runtime and the supervisor for release, and returns the runtime's path.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "runtime-")
	if err != nil {
		return "", err
	}
	if err := buildShipped(dir+"/", ".", "../supervisor"); err != nil {
		return "", err
	}
	return filepath.Join(dir, "runtime"), nil
})

// buildShipped builds programs with the release settings. They are static, even if the tests use
// cgo.
func buildShipped(into string, packages ...string) error {
	build := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", into},
		packages...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %v: %w\n%s", packages, err, output)
	}
	return nil
}

// pod is a session's environment, as a kubelet would set it up.
type pod struct {
	dir, workspace, home, termination, address string
	doc                                        session.Document
	image                                      []string // environment variables of the container
	variables                                  []string // names of the variables that the pod sets
	secrets                                    map[string]string
	user                                       uint32 // another user to run as
	bin                                        string // the programs for that user
	cmd                                        *exec.Cmd
	ended                                      chan struct{}
	mu                                         sync.Mutex
	printed                                    bytes.Buffer
}

func newPod(t *testing.T, doc session.Document) *pod {
	t.Helper()
	root := t.TempDir()
	p := &pod{
		dir: filepath.Join(root, "session"), workspace: filepath.Join(root, "workspace"), home: filepath.Join(root, "home"),
		termination: filepath.Join(root, "termination"), doc: doc,
	}
	p.doc.Conversation, p.doc.Namespace = "hello", "team"
	for _, dir := range []string{p.dir, p.workspace, p.home} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p.writeDocument(t)
	p.secrets = maps.Clone(secretValues)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.address = listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pod) writeDocument(t *testing.T) {
	t.Helper()
	text, err := json.Marshal(p.doc)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(p.dir, session.DocumentFile), string(text))
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (p *pod) env() []string {
	env := append(append(os.Environ(), p.image...), "PARLEY_SESSION_DIR="+p.dir, "PARLEY_WORKSPACE="+p.workspace, "HOME="+
		p.home,
		"PARLEY_TERMINATION_LOG="+p.termination, "PARLEY_BIND_ADDRESS="+p.address)
	for key, value := range p.secrets {
		env = append(env, session.SecretVariable(key)+"="+value)
	}
	return env
}

func (p *pod) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.printed.Write(text)
}

func (p *pod) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.printed.String()
}

func (p *pod) start(t *testing.T) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(filepath.Join(cmp.Or(p.bin, filepath.Dir(path)), "supervisor"),
		append([]string{supervise.FromEnvironment}, p.variables...)...)
	if p.user != 0 {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.user, Gid: p.user}}
	}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = p.env(), p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd, ended := p.cmd, make(chan struct{})
	p.ended = ended
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("the session printed:\n%s", p.output())
		}
	})
}

func (p *pod) wait(t *testing.T) (code int, termination session.Termination) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("the session does not end; it printed:\n%s", p.output())
	}
	text, err := os.ReadFile(p.termination)
	if err == nil {
		termination, _ = session.ParseTermination(string(text))
	} else if !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode(), termination
}

func eventually(t *testing.T, condition string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !met(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", condition)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// get sends a GET request to the session. The status is 0 if there is no response.
func (p *pod) get(t *testing.T, path string, header ...string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func (p *pod) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, "the session is ready", func() bool { return p.ready(t) })
}

func (p *pod) ready(t *testing.T) bool {
	t.Helper()
	code, _ := p.get(t, session.ReadyPath)
	return code == http.StatusOK
}

func (p *pod) status(t *testing.T) session.Status {
	t.Helper()
	code, body := p.get(t, session.StatusPath, "Authorization", "Bearer "+secretValues[session.KeyFile])
	var status session.Status
	if err := json.Unmarshal([]byte(body), &status); code != http.StatusOK || err != nil {
		t.Fatalf("the status is %d %s", code, body)
	}
	return status
}

func (p *pod) connect(t *testing.T, key string) (*mcp.ClientSession, error) {
	t.Helper()
	tools, err := sessionclient.Tools(t.Context(), "http://"+p.address+session.ToolsPath,
		sessionclient.WithHeader("Authorization", "Bearer "+key))
	if err == nil {
		t.Cleanup(func() { _ = tools.Close() })
	}
	return tools, err
}

// repository creates a local repository with the branches main and feature.
func repository(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "site")
	script := `git init -q -b main "$0" && cd "$0" && echo one > main && git add . && git commit -q -m one &&
		git checkout -q -b feature && echo two > feature && git add . && git commit -q -m two && git checkout -q main`
	cmd := exec.Command("sh", "-c", script, dir)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=T",
		"GIT_AUTHOR_EMAIL=t@example.com",
		"GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("creating the repository failed: %v\n%s", err, output)
	}
	return "file://" + dir
}

// processOf waits for a process ID that an agent writes to a file.
func processOf(t *testing.T, file string) string {
	t.Helper()
	var pid string
	eventually(t, file+" is written", func() bool {
		text, err := os.ReadFile(file)
		pid = strings.TrimSpace(string(text))
		return err == nil && pid != ""
	})
	return pid
}

func gone(pid string) bool {
	_, err := os.Stat("/proc/" + pid)
	return errors.Is(err, os.ErrNotExist)
}

// silentServer returns a tool server that accepts connections and never answers.
func silentServer(t *testing.T) session.RemoteServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return session.RemoteServer{Name: "tracker", URL: "http://" + listener.Addr().String() + "/mcp"}
}
