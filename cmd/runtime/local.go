package main

import (
	"net"
	"net/http"
	"path/filepath"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/modelproxy"
)

// usageFile is on the workspace.
const usageFile = ".parley/usage.json"

// modelOptions are those of the settings.
func (s *run) modelOptions() modelproxy.Options {
	settings := &s.doc.Settings
	return modelproxy.Options{
		BaseURL: ptr.Deref(settings.LLMBaseURL, ""), Model: ptr.Deref(settings.LLMModel, ""),
		Key:    s.store.Key(session.LLMAPIKeyFile),
		Models: s.doc.Models, MaxCalls: int64(ptr.Deref(settings.MaxIterations, 0)),
		MaxBudget: ptr.Deref(settings.MaxBudgetPerTask, ""),
		Reached:   s.limited, Unpriced: s.unpriced,
		UsageFile: filepath.Join(s.env.workspace, usageFile), Busy: s.activity.begin, Log: s.log,
	}
}

// serveLocally serves the model and the tools to the agent until the session ends, and returns
// where. It asks for no key: the agent must not have the session's. So it is on a loopback address,
// which nobody outside of the pod can reach.
func (s *run) serveLocally() (root string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	if s.model, err = modelproxy.New(s.modelOptions()); err != nil {
		s.log.Error("the model cannot be used", "error", err)
		s.model = modelproxy.Unusable(err)
	}
	mux.Handle("/", s.model)
	mux.HandleFunc(session.ToolsPath, func(w http.ResponseWriter, r *http.Request) {
		if !modelproxy.Local(r) {
			writeText(w, http.StatusForbidden, "the tools are served on the loopback address only")
			return
		}
		s.serveTools(w, r)
	})
	s.serveOn(listener, mux)
	return "http://" + listener.Addr().String(), nil
}
