package loop

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
	"unicode"

	"github.com/parley-dev/parley/cmd/agent/tools"
)

const (
	gitTimeout = 2 * time.Second
	// maxName limits the length, in characters, of each name in the description of the environment.
	maxName = 200
)

// programs lists well-known programs. The description of the environment tells the model which of
// them are installed in the container image.
var programs = strings.Fields("git rg fd jq curl make cmake gcc clang go cargo python3 pip uv poetry node npm pnpm " +
	"yarn bun deno java mvn gradle ruby bundle php composer dotnet docker kubectl helm psql sqlite3")

func describeEnvironment(ctx context.Context, dir string, now time.Time) string {
	system := fmt.Sprintf("The system is %s on %s. Your user ID is %d.", systemName(), runtime.GOARCH, os.Getuid())
	lines := []string{system}
	var found []string
	for _, name := range programs {
		if _, err := exec.LookPath(name); err == nil {
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		lines = append(lines, "These programs are installed, among others: "+strings.Join(found, ", ")+".")
	}
	lines = append(lines, "This session began on "+now.UTC().Format("Monday, 2 January 2006")+"."+
		describeRepository(ctx, dir))
	return "- " + strings.Join(lines, "\n- ")
}

func systemName() string {
	content, _ := os.ReadFile("/etc/os-release") // empty if the image lacks this file
	for line := range strings.Lines(string(content)) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return cleanName(strings.Trim(strings.TrimSpace(name), `"'`))
		}
	}
	return runtime.GOOS
}

// describeRepository returns the branch, the state and the remote of the repository in a directory.
// It returns an empty text if git finds no repository. git calls the branch "(detached)" if there
// is no current branch.
func describeRepository(ctx context.Context, dir string) string {
	ctx, cancel := context.WithTimeout(ctx, gitTimeout)
	defer cancel()
	git := func(args ...string) (string, error) {
		// Disable core.fsmonitor: with this setting, a repository can make git run any program.
		args = append([]string{"--no-optional-locks", "-c", "core.fsmonitor=false"}, args...)
		command := exec.CommandContext(ctx, "git", args...)
		command.Dir = dir
		output, err := command.Output()
		return strings.TrimSpace(string(output)), err
	}
	status, err := git("status", "--porcelain=v2", "--branch")
	if err != nil {
		return ""
	}
	branch, changed := "", 0
	for scanner := bufio.NewScanner(strings.NewReader(status)); scanner.Scan(); {
		if name, ok := strings.CutPrefix(scanner.Text(), "# branch.head "); ok {
			branch = name
		} else if !strings.HasPrefix(scanner.Text(), "#") {
			changed++
		}
	}
	text := fmt.Sprintf(" At that time, the working directory was a git repository on the branch %s. Files with "+
		"uncommitted changes: %d.", cleanName(branch), changed)
	remote, _ := git("config", "--get", "remote.origin.url") // not every repository has a remote
	if name := remoteName(remote); name != "" {
		text += " Its remote origin is " + name + "."
	}
	return text
}

// remoteName returns the host and the path of a remote. It leaves out the user, which may be a
// token. For a remote without a host, it returns an empty string.
func remoteName(remote string) string {
	remote = strings.TrimSuffix(remote, ".git")
	if u, err := url.Parse(remote); err == nil && u.Host != "" {
		return cleanName(u.Host + u.Path)
	}
	host, path, ok := strings.Cut(remote, ":") // user@host:path
	if !ok || strings.Contains(host, "/") || strings.HasPrefix(path, "//") {
		return ""
	}
	return cleanName(host[strings.LastIndex(host, "@")+1:] + "/" + path)
}

// cleanName shortens a name and removes its control characters, because an image or a repository
// can contain any name.
func cleanName(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, name)
	return tools.Cut(name, maxName)
}
