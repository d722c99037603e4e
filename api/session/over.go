package session

// Over is the detail of the 409 response to a message that comes too late, because the session has
// ended or is ending. The next attempt accepts the message.
const Over = "the session has ended or is ending"
