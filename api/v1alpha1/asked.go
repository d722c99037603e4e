package v1alpha1

// Asked is what a session was asked to do: the spec without its lifecycle, which may change at any
// time.
func (s *ConversationSpec) Asked() ConversationSpec {
	asked := *s
	asked.Suspend = false
	asked.RestartAt = nil
	asked.IdleTimeout = nil
	asked.StartDeadline = nil
	asked.MaxDuration = nil
	asked.TTLAfterStopped = nil
	return asked
}
