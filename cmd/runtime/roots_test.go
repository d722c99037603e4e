package main

import (
	"crypto/x509"
	"testing"
)

// Not parallel: the authorities are looked up once a process.
func TestAnImageWithoutCertificateAuthoritiesIsEnough(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("SSL_CERT_DIR", empty)
	t.Setenv("SSL_CERT_FILE", empty+"/none")
	pool, err := x509.SystemCertPool()
	if err != nil || pool.Equal(x509.NewCertPool()) {
		t.Errorf("no authority is trusted: %v", err)
	}
}
