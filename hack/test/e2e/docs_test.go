package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/local/cluster"
)

// installAsDocumented runs the commands of docs/install.md: the installation, a first conversation
// and the removal. It skips make commands, because the image is already on the node.
func installAsDocumented(t *t) {
	t.must(t.helm(t.ctx, "uninstall", "parley", "--namespace="+parleyNamespace, "--ignore-not-found", "--wait"))
	t.must(t.uninstallParley(t.ctx))
	_, err := t.kubectl(t.ctx, "delete", "crd", "--ignore-not-found", "conversations.parley.dev",
		"usersettings.parley.dev", "sessionclasses.parley.dev")
	t.must(err)
	guide, err := os.ReadFile(filepath.Join(filepath.Dir(t.chart), "..", "docs", "install.md"))
	t.must(err)
	commands := commandsOf(string(guide))
	began := time.Now()
	t.follow(commands["Step by step"])
	t.follow(commands["A first conversation"])
	t.Logf("%d commands, %d of them make's, which ran before; %.0f s from an empty cluster to two running "+
		"conversations",
		len(commands["Step by step"])+len(commands["A first conversation"]), made(commands["Step by step"]),
		time.Since(began).Seconds())
	for _, name := range []string{"first", "second"} {
		c := &v1alpha1.Conversation{}
		t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: "default", Name: name}, c))
		if c.Status.State != v1alpha1.StateRunning {
			t.Errorf("%s is %s, %s", name, c.Status.State, c.Status.Reason)
		}
	}
	removal := commands["Remove it"]
	t.follow(removal[1:3]) // deletes the conversations while Parley still runs
	t.follow(removal[:1])
	t.expectNothingLeft()
	t.follow(removal[3:])
	t.follow(commands["With Helm"])
	built, err := os.ReadFile(builtFile(t.state))
	t.must(err)
	_, byDigest, _ := strings.Cut(strings.TrimSpace(string(built)), " ")
	t.expectImage(byDigest)
}

// commandsOf returns the commands in each section of a document. A command continues after a
// backslash at the end of a line.
func commandsOf(document string) map[string][]string {
	commands, section := map[string][]string{}, ""
	open := false
	for line := range strings.Lines(document) {
		line = strings.TrimSuffix(line, "\n")
		if heading, is := strings.CutPrefix(line, "## "); is {
			section = heading
		}
		command, is := strings.CutPrefix(line, "    ")
		switch {
		case !is:
		case open:
			last := &commands[section][len(commands[section])-1]
			*last += "\n" + command
		default:
			commands[section] = append(commands[section], command)
		}
		open = is && strings.HasSuffix(line, `\`)
	}
	return commands
}

func made(commands []string) (n int) {
	for _, command := range commands {
		if strings.HasPrefix(command, "make ") {
			n++
		}
	}
	return n
}

// follow runs commands in one shell, in a directory with copies of dist/ and config/.
func (t *t) follow(commands []string) {
	if len(commands) == 0 {
		t.Fatalf("the guide no longer has these commands")
	}
	dir, programs := filepath.Join(runDir, "guide"), filepath.Join(runDir, "guide-bin")
	t.must(os.RemoveAll(dir))
	t.must(os.MkdirAll(programs, 0o755))
	for name, target := range map[string]string{"kubectl": t.kubernetes("kubectl"), "helm": filepath.Join(t.binDir,
		"helm")} {
		_ = os.Remove(filepath.Join(programs, name))
		t.must(os.Symlink(target, filepath.Join(programs, name)))
	}
	t.must(os.CopyFS(filepath.Join(dir, "dist"), os.DirFS(t.dist)))
	built, err := os.ReadFile(builtFile(t.state))
	t.must(err)
	t.must(os.MkdirAll(filepath.Join(dir, "dist", "images"), 0o755))
	t.must(os.WriteFile(filepath.Join(dir, "dist", "images", "built"), built, 0o600))
	t.must(os.CopyFS(filepath.Join(dir, "config"), os.DirFS(filepath.Dir(t.chart))))
	t.useLocalImage(filepath.Join(dir, "dist", "default-class.yaml"))
	script := []string{"set -eu"}
	for _, command := range commands {
		if !strings.HasPrefix(command, "make ") {
			script = append(script, command)
		}
	}
	// When the shell exits, it must also end its background jobs.
	text := "shopt -s expand_aliases; trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + strings.Join(script, "\n") +
		"\n"
	repository, _, _ := strings.Cut(parleyImage, ":")
	text = strings.ReplaceAll(text, "registry.example.com/parley", repository)
	cmd := exec.CommandContext(t.ctx, "bash", "-c", text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+t.adminKubeconfig(), "HOME="+runDir, "PATH="+programs+":"+
		os.Getenv("PATH"))
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the guide does not work as written: %v\n%s\n%s", err, text, output)
	}
}

// useLocalImage sets the image of a class to an image that is on the node.
func (t *t) useLocalImage(file string) {
	content, err := os.ReadFile(file)
	t.must(err)
	class := map[string]any{}
	t.must(yaml.Unmarshal(content, &class))
	t.must(unstructured.SetNestedField(class, debianImage, "spec", "images", "default"))
	content, err = yaml.Marshal(class)
	t.must(err)
	t.must(cluster.WritePrivate(file, content))
}
