package workspace

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	gitconfig "github.com/go-git/go-git/v5/plumbing/format/config"

	"github.com/parley-dev/parley/cmd/runtime/record"
)

// configureGit sets the author of commits and directs git to the git proxy. It stores no token. It
// writes to ~/.gitconfig and leaves the clone's configuration to the user. go-git could damage the
// clone's configuration, because it does not know all options.
func configureGit(o Options, remote *Remote) error {
	file := filepath.Join(o.Home, ".gitconfig")
	config, unreadable := readConfig(file)
	if o.UserName != "" {
		config.SetOption("user", gitconfig.NoSubsection, "name", o.UserName)
	}
	if o.UserEmail != "" {
		config.SetOption("user", gitconfig.NoSubsection, "email", o.UserEmail)
	}
	removeProxies(config)
	if remote != nil && o.Token != "" && o.ProxyURL != "" {
		// Remove the credential helper that earlier versions of Parley configured.
		config.RemoveSubsection("credential", remote.origin())
		for _, prefix := range remote.prefixes() {
			config.AddOption("url", o.ProxyURL, "insteadOf", prefix)
		}
		config.SetOption("http", o.ProxyURL, "extraHeader", o.ProxyHeader)
		// Let git connect to the git proxy directly. An HTTP proxy of the class cannot reach the
		// git proxy, which listens on the loopback address.
		config.SetOption("http", o.ProxyURL, "proxy", "")
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
		// The agent may have damaged the configuration. This must not end the session.
		o.Log.Warn("git's configuration is unreadable and was moved", "file", file, "as", file+unreadableEnd, "error",
			unreadable)
		if err := errors.Join(os.RemoveAll(file+unreadableEnd), os.Rename(file, file+unreadableEnd)); err != nil {
			return err
		}
	}
	return record.Write(file, &text, 0o600)
}

// proxyPrefix is the prefix of each git proxy's URL. The git proxy of each attempt has a different
// port, so removeProxies finds the entries of earlier attempts by this prefix.
const proxyPrefix = "http://127.0.0.1:"

func removeProxies(config *gitconfig.Config) {
	for _, name := range []string{"url", "http"} {
		if !config.HasSection(name) {
			continue
		}
		for _, sub := range slices.Clone(config.Section(name).Subsections) {
			if strings.HasPrefix(sub.Name, proxyPrefix) && strings.Contains(sub.Name, "/git/") {
				config.RemoveSubsection(name, sub.Name)
			}
		}
	}
}

const unreadableEnd = ".unreadable"

// readConfig reads a configuration. It returns an empty configuration if the file is missing or
// unreadable.
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
