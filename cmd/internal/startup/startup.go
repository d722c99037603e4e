// Package startup is how the programs that run in the cluster begin.
package startup

import (
	"flag"
	"strings"

	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// mostDetailed is the log level above which client-go logs the bodies of requests, and with them
// Secrets and keys.
const mostDetailed = zapcore.Level(-5)

// Run reads the flags, sets the logger, and bounds garbage; see boundGarbage for floor.
func Run(floor uint64) {
	logging := zap.Options{}
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	if logging.Level != nil && logging.Level.Enabled(mostDetailed-1) {
		logging.Level = mostDetailed
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))
	klog.SetLogger(ctrl.Log)
	boundGarbage(floor)
}

// SplitList is the value of a flag that separates several by commas.
func SplitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}
