package main

import (
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/driver"
)

func (s *run) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func get[T any](s *run, field *T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *field
}

func (s *run) agentStatus() session.AgentStatus {
	if !driver.HasAgent(s.doc) {
		return session.AgentStatus{State: session.AgentNone}
	}
	status := session.AgentStatus{Name: s.doc.Agent.Name, State: session.AgentWaiting}
	if d := get(s, &s.driver); d != nil {
		status.Reported, _ = d.State()
	}
	switch status.Reported {
	case session.StateRunning, session.StateConfirmation:
		status.State = session.AgentRunning
	case session.StateFinished:
		status.State = session.AgentEnded
	}
	return status
}

func (s *run) usage() session.Usage {
	used := s.model.Usage().Session
	return session.Usage{Calls: used.Calls, InputTokens: used.Input + used.CacheRead + used.CacheWrite,
		OutputTokens: used.Output, Cost: used.Cost.String()}
}

func (s *run) status() session.Status {
	servers := []session.ToolServer{}
	if router := get(s, &s.router); router != nil {
		servers = router.Health()
	}
	agent := s.agentStatus()
	s.mu.Lock()
	defer s.mu.Unlock()
	status := session.Status{
		Conversation: s.doc.Conversation,
		Namespace:    s.doc.Namespace,
		Ready:        s.at == ready,
		Workspace: session.WorkspaceStatus{
			State: session.WorkspacePrepared, Directory: s.work.Dir, Branch: s.store.Mask(s.work.Branch), Commit: s.work.Commit,
			Resumed: s.work.Resumed,
		},
		ToolServers:        servers,
		Agent:              agent,
		IdleSeconds:        int64(s.activity.idle().Seconds()),
		IdleTimeoutSeconds: int64(s.doc.IdleTimeout.Seconds()),
	}
	if s.at == preparingWorkspace {
		status.Workspace.State = session.WorkspacePreparing
	}
	if s.doc.Repository != nil {
		status.Workspace.Repository = s.doc.Repository.Name
	}
	return status
}
