package supervise

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"time"
)

// FromEnvironment is the supervisor's command-line argument for sessions outside of a pod, which
// use other paths. With this argument, the supervisor uses all PARLEY_* variables.
const FromEnvironment = "--from-environment"

const (
	parleyPrefix = "PARLEY_"
	secretPrefix = "PARLEY_SECRET_"
	// imagePrefix is added to the names of the image's variables, so that the supervisor and the
	// runtime ignore them.
	imagePrefix = "PARLEY_IMAGE_"
)

// IsolateEnvironment hides the variables of the container image from the supervisor and from the
// runtime, which inherits the supervisor's environment. Both processes have the session's keys, and
// a variable such as HTTPS_PROXY, SSL_CERT_FILE or GODEBUG could make them leak the keys. PATH, the
// session's secrets and the variables whose names are in podVariables stay unchanged. Other
// PARLEY_* variables stay if allParley is true, and are removed if it is false. All other variables
// are the image's: they get the prefix imagePrefix, and TakeImage returns them for the agent.
func IsolateEnvironment(allParley bool, podVariables []string) error {
	variables := os.Environ()
	os.Clearenv()
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		ofParley := strings.HasPrefix(name, parleyPrefix)
		allowed := name == "PATH" || strings.HasPrefix(name, secretPrefix) || slices.Contains(podVariables, name) ||
			allParley && ofParley
		switch {
		case allowed:
		case name == "" || ofParley: // an image must not choose the session document, for example
			continue
		default:
			name = imagePrefix + name
		}
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// TakeImage removes the image's variables from this process's environment. It returns them for the
// agent and the tool servers.
func TakeImage() (variables []string, err error) {
	for _, variable := range os.Environ() {
		ofImage, found := strings.CutPrefix(variable, imagePrefix)
		if !found {
			continue
		}
		name, _, _ := strings.Cut(variable, "=")
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
		variables = append(variables, ofImage)
	}
	return variables, nil
}

// Attempt is the variable with the number of this attempt. RanAttempt is the variable with the
// number of the last attempt that ran, if any.
const (
	Attempt    = "PARLEY_ATTEMPT"
	RanAttempt = "PARLEY_RAN_ATTEMPT"
)

// Config configures the first process of a session's container.
type Config struct {
	BindAddress    string
	TerminationLog string
	Cgroups        string
	// AskInterval is the interval between liveness probes. AskTimeout is how long a response may
	// take.
	AskInterval, AskTimeout time.Duration
	// EndTimeout is how long the session may take to end after a stop signal, including the
	// hand-over to the archive. Its default is the grace period of a pod.
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
