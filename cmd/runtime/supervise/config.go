package supervise

import (
	"cmp"
	"os"
	"strings"
	"time"
)

// FromEnvironment is the argument with which the supervisor takes all of Parley's variables as they
// are: for those who run a session outside of a pod, where things are in other places.
const FromEnvironment = "--from-environment"

// IgnoreImage takes Parley's variables out of the environment, for this process and its children,
// but for those that a pod sets. In a pod nobody but its image could have set the others, and an
// image must not choose which document the session trusts with its keys.
func IgnoreImage() error {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "PARLEY_") || name == Attempt || strings.HasPrefix(name, "PARLEY_SECRET_") {
			continue
		}
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return nil
}

// Attempt is the variable that says which attempt of the session this is.
const Attempt = "PARLEY_ATTEMPT"

// Place is what the first process knows of where it is.
type Place struct {
	BindAddress    string
	TerminationLog string
	Cgroups        string
	// AskInterval is how often the session is asked whether it is alive, and AskTimeout how long it
	// may take to say so.
	AskInterval, AskTimeout time.Duration
	// EndTimeout is how long it may take to end once it was told to: as long as a pod has, in which
	// it also hands over what it leaves.
	EndTimeout time.Duration
}

// ReadPlace reads it from the environment.
func ReadPlace() Place {
	return Place{
		BindAddress:    cmp.Or(os.Getenv("PARLEY_BIND_ADDRESS"), ":8080"),
		TerminationLog: cmp.Or(os.Getenv("PARLEY_TERMINATION_LOG"), "/dev/termination-log"),
		Cgroups:        cmp.Or(os.Getenv("PARLEY_CGROUP_DIR"), "/sys/fs/cgroup"),
		AskInterval:    duration("PARLEY_ASK_INTERVAL", 20*time.Second),
		AskTimeout:     duration("PARLEY_ASK_TIMEOUT", 5*time.Second),
		EndTimeout:     duration("PARLEY_END_TIMEOUT", 30*time.Second),
	}
}

func duration(name string, usual time.Duration) time.Duration {
	if value, err := time.ParseDuration(os.Getenv(name)); err == nil && value > 0 {
		return value
	}
	return usual
}
