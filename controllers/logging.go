package controllers

import "github.com/go-logr/logr"

// maxVerbosity is the highest level at which client-go logs no bodies. Above it, the Secrets that
// the manager reads and writes would stand in its log.
const maxVerbosity = 5

// withoutBodies keeps a logger from ever logging the bodies of requests, whatever verbosity was
// asked for.
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
