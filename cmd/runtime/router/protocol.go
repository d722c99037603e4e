package router

const (
	// legacyProtocol is the newest that starts with a handshake. Servers that know none newer may
	// end at any other first message; those that know only newer ones refuse it, and are greeted
	// the new way at the next attempt.
	legacyProtocol = "2025-11-25"
	// doubtful is the attempt at which a server that answered before is greeted in the other way:
	// it may have become another one, but most likely it is only away.
	doubtful = 4
)

// greeting is how a server is spoken to first: with the handshake, or the newer way.
type greeting struct {
	// newer is how it answered if it ever did, else how it is tried first.
	newer, answered bool
	// tries since it answered.
	tries int
}

// next says whether to greet the server the newer way.
func (g *greeting) next() (newer bool) {
	g.tries++
	other := g.tries%2 == 0
	if g.answered {
		other = g.tries%doubtful == 0
	}
	return g.newer != other
}

// worked remembers how the server was greeted when it answered.
func (g *greeting) worked(newer bool) { *g = greeting{newer: newer, answered: true} }
