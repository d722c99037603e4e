package session

import (
	"crypto/tls"
	"crypto/x509"
)

// ClientTLS returns the TLS settings of a connection to the session of a Conversation. The session's
// certificate names the UID of the Conversation.
func ClientTLS(uid string, authorities *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, ServerName: uid, RootCAs: authorities}
}
