package workspace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	gitconfig "github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/parley-dev/parley/cmd/runtime/record"
)

// configureGit sets the author of commits, and makes git ask the runtime for the token, for the
// repository's host only. It stores no secret. It writes to ~/.gitconfig and not to the clone's
// configuration, which belongs to the user. go-git could damage the clone's configuration, because
// go-git does not know all options.
func configureGit(o Options, remote *Remote) error {
	file := filepath.Join(o.Home, ".gitconfig")
	config, unreadable := readConfig(file)
	if o.UserName != "" {
		config.SetOption("user", gitconfig.NoSubsection, "name", o.UserName)
	}
	if o.UserEmail != "" {
		config.SetOption("user", gitconfig.NoSubsection, "email", o.UserEmail)
	}
	if remote != nil && o.Token != "" {
		config.RemoveSubsection("credential", remote.origin())
		// The empty value makes git ignore other helpers, which would get the token and might store
		// it.
		config.AddOption("credential", remote.origin(), "helper", "")
		config.AddOption("credential", remote.origin(), "helper", "!"+shellQuote(o.Helper)+" git-credential")
	}
	var text bytes.Buffer
	if err := gitconfig.NewEncoder(&text).Encode(config); err != nil {
		return err
	}
	if text.Len() == 0 {
		return nil
	}
	if err := os.MkdirAll(o.Home, 0o700); err != nil {
		return err
	}
	if unreadable != nil {
		// The agent may have damaged the configuration, and that must not end the session.
		o.Log.Warn("git's configuration is unreadable and was moved", "file", file, "as", file+unreadableEnd, "error",
			unreadable)
		if err := errors.Join(os.RemoveAll(file+unreadableEnd), os.Rename(file, file+unreadableEnd)); err != nil {
			return err
		}
	}
	return record.Write(file, &text, 0o600)
}

// unreadableEnd is the suffix for an unreadable configuration.
const unreadableEnd = ".unreadable"

// readConfig reads the configuration; an unreadable configuration counts as empty.
func readConfig(file string) (config *gitconfig.Config, unreadable error) {
	info, err := os.Stat(file)
	switch _, there := os.Lstat(file); {
	case errors.Is(there, fs.ErrNotExist):
		return gitconfig.New(), nil
	case err != nil:
		return gitconfig.New(), err
	case !info.Mode().IsRegular(): // a named pipe would block
		return gitconfig.New(), ErrNoFile
	}
	text, err := os.ReadFile(file)
	config = gitconfig.New()
	if err == nil {
		err = gitconfig.NewDecoder(bytes.NewReader(text)).Decode(config)
	}
	if err != nil {
		return gitconfig.New(), err
	}
	return config, nil
}

func shellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// Credential reads git's request for a user name and password from in. It writes an answer with the
// token to out if the request is for the token's host.
func Credential(remote *Remote, token string, in io.Reader, out io.Writer) error {
	asked := map[string]string{}
	lines := bufio.NewScanner(in)
	for lines.Scan() && lines.Text() != "" {
		name, value, _ := strings.Cut(lines.Text(), "=")
		asked[name] = value
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if remote.User == "" || token == "" || asked["protocol"] != remote.URL.Scheme || !strings.EqualFold(asked["host"],
		remote.URL.Host) {
		return nil
	}
	user, password := remote.credentials(token)
	_, err := fmt.Fprintf(out, "username=%s\npassword=%s\n", user, password)
	return err
}
