package router

const (
	// legacyProtocol is the newest version that starts with a handshake. Older servers may exit on
	// any other first message. Servers that support only newer versions refuse the handshake; the
	// next attempt uses the newer protocol.
	legacyProtocol = "2025-11-25"
	// switchEvery is the number of attempts after which a server that answered before is tried with
	// the other protocol. The server may have been upgraded, but most likely it is only down.
	switchEvery = 4
)

// greeting chooses how to connect to a server: with the handshake or with the newer protocol.
type greeting struct {
	// newer is set if the server last answered the newer protocol. answered is set when the server has
	// answered. Before that, the attempts alternate between both protocols.
	newer, answered bool
	// tries counts the attempts since the server answered.
	tries int
}

// next reports whether to use the newer protocol.
func (g *greeting) next() (newer bool) {
	g.tries++
	other := g.tries%2 == 0
	if g.answered {
		other = g.tries%switchEvery == 0
	}
	return g.newer != other
}

// worked remembers the protocol that the server answered.
func (g *greeting) worked(newer bool) { *g = greeting{newer: newer, answered: true} }
