package session

// Over is the detail of a session's 409 response to a message that it no longer accepts, because it
// has ended or is ending. The next attempt accepts the message.
const Over = "the session has ended or is ending"
