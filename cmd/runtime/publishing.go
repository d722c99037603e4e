package main

import (
	"net/http"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
	"github.com/parley-dev/parley/cmd/runtime/githost"
	"github.com/parley-dev/parley/cmd/runtime/launch"
	"github.com/parley-dev/parley/cmd/runtime/process"
	"github.com/parley-dev/parley/cmd/runtime/publish"
	"github.com/parley-dev/parley/cmd/runtime/workspace"
)

func (s *run) newPublisher(work *workspace.Workspace) *publish.Publisher {
	p := &publish.Publisher{Dir: work.Dir, NewBranch: "parley/" + s.doc.Conversation,
		Env: launch.WithoutProxy(s.env.children()), Confine: process.Confine, Mask: s.store.Mask,
		Created: func(link string) {
			if d := get(s, &s.driver); d != nil {
				d.Published(link)
			}
		}}
	if s.doc.Repository == nil {
		return p
	}
	p.Base = s.doc.Repository.Branch
	p.Host, _ = githost.New(s.doc.Repository, s.providerToken()) // without a token there is no host
	if remote, err := workspace.Locate(s.doc.Repository); err == nil {
		p.Remote = remote.URL.String()
	}
	return p
}

// withPublisher serves requests as soon as the session has a driver. A session with a driver also
// has a publisher.
func (s *run) withPublisher(serve func(*publish.Server, http.ResponseWriter, *http.Request)) http.HandlerFunc {
	return with(s, &s.driver, func(d *driver.Driver, w http.ResponseWriter, r *http.Request) {
		serve(&publish.Server{Publisher: get(s, &s.publisher), Notice: d.Notice, Busy: s.activity.begin,
			Working: func() bool { return s.agentStatus().State == session.AgentRunning }}, w, r)
	})
}
