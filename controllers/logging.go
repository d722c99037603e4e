package controllers

import "github.com/go-logr/logr"

// maxVerbosity is the highest level at which client-go does not log bodies. Above this level, the
// log would contain the Secrets that the manager reads and writes.
const maxVerbosity = 5

// withoutBodies returns a logger that never logs request bodies, at any configured verbosity.
func withoutBodies(log logr.Logger) logr.Logger {
	return log.WithSink(cappedSink{log.GetSink()})
}

type cappedSink struct{ logr.LogSink }

func (s cappedSink) Enabled(level int) bool {
	return level <= maxVerbosity && s.LogSink.Enabled(level)
}

func (s cappedSink) WithValues(values ...any) logr.LogSink {
	return cappedSink{s.LogSink.WithValues(values...)}
}

func (s cappedSink) WithName(name string) logr.LogSink { return cappedSink{s.LogSink.WithName(name)} }
