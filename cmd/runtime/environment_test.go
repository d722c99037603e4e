package main_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// rootVariable is the name of an environment variable. If the variable is set, the test binary runs
// as the first process of a container. The value is the root directory of the container.
const rootVariable = "CONTAINER_ROOT"

// superviseIn executes the supervisor in this root directory, as in the container of a pod.
func superviseIn(root string) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	loopback, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	loopback.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, loopback); err != nil {
		return fmt.Errorf("use the loopback address: %w", err)
	}
	if err := errors.Join(unix.Close(socket), unix.Mount("/proc", filepath.Join(root, "proc"), "",
		unix.MS_BIND|unix.MS_REC, "")); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir(session.WorkspaceDir)); err != nil {
		return err
	}
	program := session.BinDir + "/supervisor"
	return unix.Exec(program, []string{program}, slices.DeleteFunc(os.Environ(),
		func(v string) bool { return strings.HasPrefix(v, rootVariable) }))
}

func TestAContainerImageCannotChooseTheSessionDocument(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, dir := range []string{session.Dir, session.WorkspaceDir, session.BinDir, "/dev", "/proc", "/x/workspace"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"runtime", "supervisor"} {
		if err := os.Link(filepath.Join(filepath.Dir(path), name), filepath.Join(root, session.BinDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	p := &pod{dir: filepath.Join(root, session.Dir),
		doc: session.Document{IdleTimeout: metav1.Duration{Duration: time.Millisecond}}}
	p.writeDocument(t)
	ofImage := &pod{dir: filepath.Join(root, "x"), doc: session.Document{FirstMessage: "go",
		Agent: &session.Agent{Name: "x", Command: []string{"no-such-agent"}}}}
	ofImage.writeDocument(t)

	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{
		rootVariable + "=" + root, "PARLEY_SESSION_DIR=/x", "PARLEY_WORKSPACE=/x/workspace",
		"PARLEY_TERMINATION_LOG=/x/termination",
		"PARLEY_BIND_ADDRESS=127.0.0.1:9", "PARLEY_ASK_INTERVAL=1ns", "PARLEY_ASK_TIMEOUT=1ns",
		session.SecretVariable(session.KeyFile) + "=" + secretValues[session.KeyFile],
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	ids := []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	// The container has a separate network, because the default port may be in use on this machine.
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, UidMappings: ids,
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("this machine does not allow new namespaces: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	if err := cmd.Wait(); err != nil || strings.Contains(output.String(), "asked to") {
		t.Errorf("it ended with %v, and printed\n%s", err, output.String())
	}
	message, err := os.ReadFile(filepath.Join(root, "/dev/termination-log"))
	if got, said := session.ParseTermination(string(message)); err != nil || !said || got.Reason != v1alpha1.ReasonIdle {
		t.Errorf("it says %q (%v)", message, err)
	}
	if _, err := os.Stat(filepath.Join(root, session.WorkspaceDir, ".parley")); err != nil {
		t.Errorf("it worked elsewhere: %v", err)
	}
}

// showing returns an agent that records its environment and then waits.
func showing() *session.Agent {
	return agent(`env > "$PARLEY_WORKSPACE/variables"; mv "$PARLEY_WORKSPACE/variables" "$PARLEY_WORKSPACE/env"
		while true; do sleep 0.01; done`)
}

func (p *pod) agentVariable(t *testing.T, name string) (value string) {
	t.Helper()
	eventually(t, "the agent recorded its environment", func() bool {
		text, err := os.ReadFile(filepath.Join(p.workspace, "env"))
		for line := range strings.Lines(string(text)) {
			if of, found := strings.CutPrefix(line, name+"="); found {
				value = strings.TrimSuffix(of, "\n")
			}
		}
		return err == nil
	})
	return value
}

func (p *pod) callModel(t *testing.T) (status int) {
	t.Helper()
	response, err := http.Post(p.agentVariable(t, "LLM_BASE_URL")+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"gpt"}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

func answered(t *testing.T, p *pod) {
	t.Helper()
	if got := p.callModel(t); got != http.StatusOK {
		t.Errorf("the model answers with %d", got)
	}
}

// anyAddress returns another URL of the same server. Clients never use a proxy for a loopback
// address, but they use a proxy for this URL.
func anyAddress(url string) string { return strings.Replace(url, "127.0.0.1", "0.0.0.0", 1) }

func TestAContainerImageCannotDivertOrPrintKeys(t *testing.T) {
	name := "openai/gpt"
	key, token := "Bearer "+secretValues[session.LLMAPIKeyFile], "Basic "
	thief := newEchoing(t, http.StatusOK)
	var proxies []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		proxies = append(proxies, name+"="+thief.URL, strings.ToLower(name)+"="+thief.URL)
	}
	stolen := func(t *testing.T) {
		t.Helper()
		thief.mu.Lock()
		defer thief.mu.Unlock()
		if thief.heard != "" {
			t.Errorf("the image's host received %s", thief.heard)
		}
	}
	t.Run("a proxy for the model and the tools", func(t *testing.T) {
		model, tools := newEchoing(t, http.StatusOK), newEchoing(t, http.StatusBadRequest)
		base := anyAddress(model.URL)
		p := newPod(t, session.Document{
			Settings: v1alpha1.UserSettingsSpec{LLMModel: &name, LLMBaseURL: &base}, FirstMessage: "go", Agent: showing(),
			ToolServers: session.ToolServers{SHTTP: []session.RemoteServer{{URL: anyAddress(tools.URL),
				APIKeyFile: "mcp.shttp.0"}}},
		})
		p.secrets["mcp.shttp.0"], p.image = "tool-0123456789", append(proxies, "JAVA_HOME=/opt/java")
		p.start(t)
		answered(t, p)
		stolen(t)
		if !model.got(key) || !tools.got("Bearer tool-0123456789") {
			t.Error("the keys did not reach their own hosts")
		}
		if got := p.agentVariable(t, "HTTPS_PROXY") + p.agentVariable(t, "JAVA_HOME"); got != thief.URL+"/opt/java" {
			t.Errorf("the agent has the image's variables %q", got)
		}
	})
	t.Run("a proxy for the repository", func(t *testing.T) {
		host := newEchoing(t, http.StatusForbidden)
		at := strings.TrimPrefix(anyAddress(host.URL), "http://")
		p := newPod(t, session.Document{Repository: &session.Repository{Name: "http://" + at + "/acme/site", Host: at,
			Provider: v1alpha1.GitHub, TokenFile: session.ProviderTokenFile}})
		p.image = proxies
		p.start(t)
		p.wait(t)
		stolen(t)
		if !host.got(token) {
			t.Error("the token did not reach its own host")
		}
	})
	t.Run("a debug log", func(t *testing.T) {
		company := newAuthority(t)
		base := company.serve(t, newEchoing(t, http.StatusOK).Config.Handler)
		p := newPod(t, session.Document{Settings: v1alpha1.UserSettingsSpec{LLMModel: &name, LLMBaseURL: &base},
			CABundle: company.pem, FirstMessage: "go", Agent: showing()})
		p.image = []string{"GODEBUG=http2debug=2"}
		p.start(t)
		answered(t, p)
		if printed := p.output(); strings.Contains(printed, "http2") || strings.Contains(printed,
			secretValues[session.LLMAPIKeyFile]) {
			t.Errorf("the session printed\n%s", printed)
		}
	})
	t.Run("an authority", func(t *testing.T) {
		company, ofImage := newAuthority(t), newAuthority(t)
		p := newPod(t, session.Document{CABundle: company.pem, ToolServers: session.ToolServers{
			SHTTP: []session.RemoteServer{{URL: ofImage.toolServer(t)}}}})
		file := filepath.Join(p.home, "ca.pem")
		write(t, file, ofImage.pem)
		p.image = []string{"SSL_CERT_FILE=" + file, "SSL_CERT_DIR=" + p.home}
		p.start(t)
		eventually(t, "the tool server was refused", func() bool {
			if code, _ := p.get(t, session.AlivePath); code != http.StatusOK {
				return false
			}
			servers := p.status(t).ToolServers
			if len(servers) == 1 && servers[0].State == session.ToolServerConnected {
				t.Fatal("the session trusts the image's authority")
			}
			return len(servers) == 1 && strings.Contains(servers[0].Error, "unknown authority")
		})
	})
}

// Custom secrets are environment variables of the agent. They must not change where the runtime
// sends a key, because the key may belong to a team.
func TestACustomSecretCannotSendKeysToAnotherHost(t *testing.T) {
	name, thief, model := "openai/gpt", newEchoing(t, http.StatusOK), newEchoing(t, http.StatusOK)
	base := anyAddress(model.URL)
	doc := session.Document{Settings: v1alpha1.UserSettingsSpec{LLMModel: &name, LLMBaseURL: &base}, FirstMessage: "go",
		Agent: showing()}
	values := map[string]string{}
	for i, variable := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
		"OPENAI_BASE_URL", "SSL_CERT_FILE"} {
		file := fmt.Sprintf("custom.%d", i)
		values[file] = thief.URL
		doc.CustomSecrets = append(doc.CustomSecrets, session.CustomSecret{Name: variable, ValueFile: file})
	}
	p := newPod(t, doc)
	maps.Copy(p.secrets, values)
	p.start(t)
	answered(t, p)
	if got := p.agentVariable(t, "HTTPS_PROXY"); got != thief.URL {
		t.Errorf("the agent has the proxy %q", got)
	}
	key := secretValues[session.LLMAPIKeyFile]
	if thief.got(key) || !model.got("Bearer "+key) {
		t.Error("the key did not reach its own host only")
	}
}

func TestASessionUsesTheProxyOfItsPod(t *testing.T) {
	name, proxy, model := "openai/gpt", newEchoing(t, http.StatusOK), newEchoing(t, http.StatusOK)
	base := anyAddress(model.URL)
	p := newPod(t, session.Document{Settings: v1alpha1.UserSettingsSpec{LLMModel: &name, LLMBaseURL: &base},
		FirstMessage: "go", Agent: showing()})
	p.image, p.variables = []string{"HTTP_PROXY=" + proxy.URL}, []string{"HTTP_PROXY"}
	p.start(t)
	answered(t, p)
	if !proxy.got("Bearer "+secretValues[session.LLMAPIKeyFile]) || model.got("Bearer") {
		t.Error("the call did not use the proxy")
	}
}
