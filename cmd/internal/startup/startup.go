// Package startup parses the flags and sets up the log and the garbage collection of the programs
// that run in the cluster.
package startup

import (
	"flag"
	"fmt"
	"os"
	"strings"

	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/parley-dev/parley/api/version"
)

// maxVerbosity is the most verbose log level that Run allows. At more verbose levels, client-go
// logs request bodies, which contain Secrets and keys.
const maxVerbosity = zapcore.Level(-5)

// Run parses the flags, and sets up the log and the garbage collection. The heap can grow to floor
// bytes before garbage is collected.
func Run(floor uint64) {
	flag.BoolFunc("version", "Print the version and exit.", func(string) error {
		fmt.Println(version.Parley)
		os.Exit(0)
		return nil
	})
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	if logging.Level != nil && logging.Level.Enabled(maxVerbosity-1) {
		logging.Level = maxVerbosity
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))
	klog.SetLogger(ctrl.Log)
	boundGarbage(floor)
	ctrl.Log.Info("starting", "version", version.Parley)
}

// SplitList splits the value of a flag at commas and spaces.
func SplitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}
