package workspace

import (
	"errors"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// OpenAnyNames opens a clone with a work tree in dir. Like git on Linux, the returned repository
// accepts names that Windows reserves, such as aux. A repository of git.Open cannot compare a
// directory with such a name.
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

// SetConfig fails, because it would store the disabled check.
func (anyNames) SetConfig(*config.Config) error {
	return errors.New("the configuration of this clone is read-only")
}
