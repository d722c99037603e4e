package router

const (
	// legacyProtocol is the newest protocol version that begins with a handshake. It is tried
	// first, because older servers may exit if the first message is not a handshake. If a server
	// refuses the handshake, the next attempt uses the newer protocol.
	legacyProtocol = "2025-11-25"
	// switchEvery applies to a server that no longer answers. The server is most likely down, but
	// it may have been upgraded. Every fourth attempt therefore uses the other protocol.
	switchEvery = 4
)

// greeting chooses between the handshake and the newer protocol.
type greeting struct {
	// newer is set if the last successful connection used the newer protocol. answered is set after
	// the first successful connection. Until then, the attempts alternate between both protocols.
	newer, answered bool
	// tries counts the attempts since the server last answered.
	tries int
}

func (g *greeting) next() (newer bool) {
	g.tries++
	other := g.tries%2 == 0
	if g.answered {
		other = g.tries%switchEvery == 0
	}
	return g.newer != other
}

func (g *greeting) worked(newer bool) { *g = greeting{newer: newer, answered: true} }
