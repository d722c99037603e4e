package objects

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/parley-dev/parley/api/session"
)

const (
	// authorityLifetime and serverLifetime are the lifetimes of certificates. A certificate is
	// replaced when a third of its lifetime is left.
	authorityLifetime = 10 * 365 * 24 * time.Hour
	serverLifetime    = 90 * 24 * time.Hour
	// backdating is the time between the start of a certificate's validity and its creation. A node
	// whose clock is behind the manager's clock thus accepts a new certificate.
	backdating = time.Hour
)

// Authority signs the certificates of Parley's servers.
type Authority struct {
	key *ecdsa.PrivateKey
	// certificates are the certificates that clients trust. The first is the authority's own. After
	// a rotation, two more follow: a certificate for this authority's key, signed by the previous
	// authority, and the previous authority's own certificate.
	certificates []*x509.Certificate
}

// completeCertificates adds certificates to the data of the signing Secret, and reports whether the
// data changed. It creates a new authority if there is none, or if the authority expires soon. If
// host is not empty, it also issues a certificate for the archive, unless the existing certificate
// is still usable (see fits).
func completeCertificates(data map[string][]byte, host string, now time.Time) (changed bool, err error) {
	signer, err := ParseAuthority(data)
	if err != nil {
		return false, err
	}
	if signer == nil || expiresSoon(signer.certificates[0], now) {
		if signer, err = addAuthority(data, signer, now); err != nil {
			return false, err
		}
		changed = true
	}
	if host == "" || signer.fits(data[session.ArchiveCertificate], host, now) {
		return changed, nil
	}
	data[session.ArchiveCertificate], data[session.ArchiveKey], err = signer.issue(host, now, now.Add(serverLifetime))
	return true, err
}

// rotateAuthority replaces the authority. The old authority signs the key of the new authority.
// Clients that trust only the old authority therefore accept the certificates of the new authority.
func rotateAuthority(data map[string][]byte, now time.Time) error {
	before, err := ParseAuthority(data)
	if err != nil || before == nil {
		return err
	}
	_, err = addAuthority(data, before, now)
	return err
}

func addAuthority(data map[string][]byte, before *Authority, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the certificate authority: %w", err)
	}
	template := newTemplate("parley "+rand.Text(), now, now.Add(authorityLifetime))
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	own, err := create(template, template, key, key)
	if err != nil {
		return nil, err
	}
	added := &Authority{key: key, certificates: []*x509.Certificate{own}}
	if before != nil {
		previous := before.certificates[0]
		crossed, err := create(template, previous, key, before.key)
		if err != nil {
			return nil, err
		}
		added.certificates = append(added.certificates, crossed, previous)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	data[session.AuthorityKey] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
	data[session.AuthorityCertificates] = encodeCertificates(added.certificates)
	return added, nil
}

// issue returns the certificate and the key of a server. The certificate from chain(), if any,
// comes after the server's certificate.
func (a *Authority) issue(host string, now, until time.Time) (certificates, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the key of a certificate: %w", err)
	}
	template := newTemplate(host, now, until)
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature,
		[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if address := net.ParseIP(host); address != nil {
		template.IPAddresses = []net.IP{address}
	} else {
		template.DNSNames = []string{host}
	}
	issued, err := create(template, a.certificates[0], private, a.key)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return encodeCertificates(append([]*x509.Certificate{issued}, a.chain()...)),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded}), nil
}

// addServerCertificate adds the certificate that a session uses for HTTPS. The host in the
// certificate is the Conversation's UID. The certificate is valid as long as its authority, because
// the running time of a session may be unlimited.
func (a *Authority) addServerCertificate(data map[string][]byte, uid string, now time.Time) error {
	certificates, key, err := a.issue(uid, now, a.certificates[0].NotAfter)
	data[session.ServerCertificateFile] = append(certificates, key...)
	return err
}

// chain returns the certificate of this authority that the previous authority signed, if any.
func (a *Authority) chain() []*x509.Certificate {
	if len(a.certificates) > 1 {
		return a.certificates[1:2]
	}
	return nil
}

// fits reports whether this authority signed a server's certificate, and the certificate is for
// this host and does not expire soon.
func (a *Authority) fits(text []byte, host string, now time.Time) bool {
	certificates, err := parseCertificates(text)
	return err == nil && len(certificates) > 0 && certificates[0].CheckSignatureFrom(a.certificates[0]) == nil &&
		certificates[0].VerifyHostname(host) == nil && !expiresSoon(certificates[0], now)
}

func expiresSoon(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/3
}

func newTemplate(name string, now, until time.Time) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdating), NotAfter: until}
}

func create(template, parent *x509.Certificate, key, with *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, with)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// errAuthority names two data keys of the Secret. It never quotes their values.
var errAuthority = errors.New("keys " + session.AuthorityKey + " and " + session.AuthorityCertificates + ": they are " +
	"not a PEM-encoded ECDSA key with its certificate")

// ParseAuthority returns the authority in the data of the signing Secret, or nil if there is none.
func ParseAuthority(data map[string][]byte) (*Authority, error) {
	if len(data[session.AuthorityKey]) == 0 {
		return nil, nil
	}
	block, _ := pem.Decode(data[session.AuthorityKey])
	if block == nil {
		return nil, errAuthority
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, is := parsed.(*ecdsa.PrivateKey)
	if err != nil || !is {
		return nil, errAuthority
	}
	certificates, err := parseCertificates(data[session.AuthorityCertificates])
	if err != nil || len(certificates) == 0 || !key.PublicKey.Equal(certificates[0].PublicKey) {
		return nil, errAuthority
	}
	return &Authority{key: key, certificates: certificates}, nil
}

func parseCertificates(text []byte) (all []*x509.Certificate, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		parsed, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, parsed)
	}
	return all, nil
}

func encodeCertificates(all []*x509.Certificate) []byte {
	var text bytes.Buffer
	for _, c := range all {
		_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}) // never fails
	}
	return text.Bytes()
}
