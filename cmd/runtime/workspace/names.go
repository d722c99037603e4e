package workspace

import (
	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// OpenAnyNames opens a clone with a work tree in dir. Like git on Linux, the returned repository
// accepts file names that Windows reserves, such as aux.c. A repository of git.Open cannot check out
// such files. The caller must not store the configuration of the repository, because it differs from
// the file.
func OpenAnyNames(storage *filesystem.Storage, dir string) (*git.Repository, error) {
	return git.Open(anyNames{storage}, osfs.New(dir))
}

type anyNames struct{ *filesystem.Storage }

// Config disables the check of reserved names. go-git refuses .git and its variants nevertheless.
func (s anyNames) Config() (*config.Config, error) {
	settings, err := s.Storage.Config()
	if err == nil {
		settings.Core.ProtectNTFS = config.OptBoolFalse
	}
	return settings, err
}
