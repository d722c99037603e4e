package supervise

import (
	"cmp"
	"os"
	"strings"
	"time"
)

// FromEnvironment is the supervisor's argument to use all PARLEY_* variables, for sessions outside
// of a pod, which have other paths.
const FromEnvironment = "--from-environment"

// IgnoreImage removes PARLEY_* variables from the environment of this process and its children,
// except the variables that a pod sets. Only the image can have set the other variables, and an
// image must not choose the session document, because the session sends keys to the addresses in
// that document.
func IgnoreImage() error {
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "PARLEY_") || name == Attempt || name == RanAttempt ||
			strings.HasPrefix(name, "PARLEY_SECRET_") {
			continue
		}
		if err := os.Unsetenv(name); err != nil {
			return err
		}
	}
	return nil
}

// Variables with the number of the session's attempt, and with the number of the last attempt that
// ran, if any.
const (
	Attempt    = "PARLEY_ATTEMPT"
	RanAttempt = "PARLEY_RAN_ATTEMPT"
)

// Config configures the first process of a container.
type Config struct {
	BindAddress    string
	TerminationLog string
	Cgroups        string
	// AskInterval is the interval of liveness probes, and AskTimeout the limit for a response.
	AskInterval, AskTimeout time.Duration
	// EndTimeout is how long the session may take to end once it was asked to: as long as a pod
	// has, including the hand-over to the archive.
	EndTimeout time.Duration
}

// ReadConfig reads the configuration from the environment.
func ReadConfig() Config {
	return Config{
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
