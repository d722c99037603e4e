package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 365 * 24 * time.Hour
	// A certificate that expires within renewBefore is renewed at the next start, so that a cluster
	// can run for a month without a restart.
	renewBefore = 30 * 24 * time.Hour
)

// Names of the certificates and keys. etcd has its own authority, so that client certificates for
// the API server give no access to etcd.
const (
	authority             = "ca"
	etcdAuthority         = "etcd-ca"
	servingCert           = "serving"
	adminCert             = "admin"
	controllerManagerCert = "kube-controller-manager"
	etcdCert              = "etcd"
	kubeletClientCert     = "kubelet-client"
	etcdClientCert        = "etcd-client"
	serviceAccountKey     = "service-account"
)

type certificate struct {
	name     string
	signedBy string
	subject  pkix.Name
	serves   bool // the certificate is for a server, not only for a client
}

var certificates = []certificate{
	{servingCert, authority, pkix.Name{CommonName: "kube-apiserver"}, true},
	{adminCert, authority, pkix.Name{CommonName: "local-admin", Organization: []string{"system:masters"}}, false},
	{controllerManagerCert, authority, pkix.Name{CommonName: "system:kube-controller-manager"}, false},
	{kubeletClientCert, authority, pkix.Name{CommonName: KubeletClient}, false},
	{etcdCert, etcdAuthority, pkix.Name{CommonName: "etcd"}, true},
	{etcdClientCert, etcdAuthority, pkix.Name{CommonName: "kube-apiserver"}, false},
}

var (
	servingNames = []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	// 10.96.0.1 is the cluster IP of the Service kubernetes.
	servingAddresses = []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv4(10, 96, 0, 1).To4()}
)

// KubeletClient is the common name in the certificate with which the API server connects to
// kubelets.
const KubeletClient = "kube-apiserver-kubelet-client"

// PKI is a directory of certificates and keys.
type PKI struct {
	dir       string
	addresses []net.IP // addresses in the server certificates
}

// EnsurePKI creates missing certificates and keys, and renews certificates that expire soon. Server
// certificates are valid for loopback and for the given addresses.
func EnsurePKI(dir string, addresses ...net.IP) (PKI, error) {
	p := PKI{dir, append(slices.Clone(servingAddresses), addresses...)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return p, err
	}
	for _, name := range []string{authority, etcdAuthority} {
		if err := p.ensureAuthority(name); err != nil {
			return p, fmt.Errorf("certificate authority %s: %w", name, err)
		}
	}
	for _, c := range certificates {
		if err := p.ensureCertificate(c); err != nil {
			return p, fmt.Errorf("certificate %s: %w", c.name, err)
		}
	}
	if err := p.ensureServiceAccountKey(); err != nil {
		return p, fmt.Errorf("key for service account tokens: %w", err)
	}
	return p, nil
}

// EnsureClient makes a certificate for an additional client of the API server.
func (p PKI) EnsureClient(name string, subject pkix.Name) error {
	if err := p.ensureCertificate(certificate{name, authority, subject, false}); err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	return nil
}

// Authority is the name of the authority that the API server and its clients trust.
func (p PKI) Authority() string { return authority }

// Serving is the name of the API server's certificate. Other servers at the same addresses can use
// it, too.
func (p PKI) Serving() string { return servingCert }

// Cert returns the path of a certificate.
func (p PKI) Cert(name string) string { return filepath.Join(p.dir, name+".crt") }

// Key returns the path of a private key.
func (p PKI) Key(name string) string { return filepath.Join(p.dir, name+".key") }

// PublicKey returns the path of a public key. Only a key pair without a certificate has such a
// file.
func (p PKI) PublicKey(name string) string { return filepath.Join(p.dir, name+".pub") }

func (p PKI) ensureAuthority(name string) error {
	if pair, err := p.load(name); err == nil && time.Until(pair.Leaf.NotAfter) > certificateLifetime+renewBefore {
		return nil
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	template := template(pkix.Name{CommonName: name}, authorityLifetime)
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	return p.issue(name, template, template, key, key)
}

func (p PKI) ensureCertificate(c certificate) error {
	signer, err := p.load(c.signedBy)
	if err != nil {
		return err
	}
	if pair, err := p.load(c.name); err == nil && p.stillValid(pair.Leaf, signer.Leaf, c) {
		return nil
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	template := template(c.subject, certificateLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if c.serves {
		// Add ServerAuth, and keep ClientAuth: when etcd connects to itself, it presents its server
		// certificate as a client.
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		template.DNSNames, template.IPAddresses = servingNames, p.addresses
	}
	return p.issue(c.name, template, signer.Leaf, key, signer.PrivateKey.(*ecdsa.PrivateKey))
}

// stillValid reports whether a certificate from an earlier run can be used. The current authority
// must have signed it, its names must be current, and it must not expire soon.
func (p PKI) stillValid(leaf, signer *x509.Certificate, c certificate) bool {
	roots := x509.NewCertPool()
	roots.AddCert(signer)
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:       roots,
		CurrentTime: time.Now().Add(renewBefore),
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil || leaf.Subject.String() != c.subject.String() {
		return false
	}
	return !c.serves || slices.Equal(leaf.DNSNames, servingNames) &&
		slices.EqualFunc(leaf.IPAddresses, p.addresses, net.IP.Equal)
}

// ensureServiceAccountKey creates the signing key of service account tokens. It keeps an existing
// key pair, because a new key would invalidate every token.
func (p PKI) ensureServiceAccountKey() error {
	_, keyErr := os.Stat(p.Key(serviceAccountKey))
	_, publicErr := os.Stat(p.PublicKey(serviceAccountKey))
	if keyErr == nil && publicErr == nil {
		return nil
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := p.writeKey(serviceAccountKey, key); err != nil {
		return err
	}
	return WritePrivate(p.PublicKey(serviceAccountKey), encode("PUBLIC KEY", public))
}

func (p PKI) load(name string) (tls.Certificate, error) {
	return tls.LoadX509KeyPair(p.Cert(name), p.Key(name))
}

// ClientTLS returns a client's TLS configuration that trusts the authority. If name is not empty,
// the client presents the certificate with this name.
func (p PKI) ClientTLS(authority, name string) (*tls.Config, error) {
	trusted, err := os.ReadFile(p.Cert(authority))
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(trusted)
	if name == "" {
		return config, nil
	}
	pair, err := p.load(name)
	config.Certificates = []tls.Certificate{pair}
	return config, err
}

// ServerTLS returns the TLS configuration of a server that verifies client certificates.
func (p PKI) ServerTLS() (*tls.Config, error) {
	own, err := p.load(servingCert)
	if err != nil {
		return nil, err
	}
	config, err := p.ClientTLS(authority, "")
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own}, ClientCAs: config.RootCAs}, nil
}

func template(subject pkix.Name, life time.Duration) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      subject,
		NotBefore:    now.Add(-time.Minute), // clocks differ
		NotAfter:     now.Add(life),
	}
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// issue writes the key before the certificate, so that every certificate file has a key file.
func (p PKI) issue(name string, template, signer *x509.Certificate, key, signerKey *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, template, signer, &key.PublicKey, signerKey)
	if err != nil {
		return err
	}
	if err := p.writeKey(name, key); err != nil {
		return err
	}
	return WritePrivate(p.Cert(name), encode("CERTIFICATE", der))
}

func (p PKI) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return WritePrivate(p.Key(name), encode("EC PRIVATE KEY", der))
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
