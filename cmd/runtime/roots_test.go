package main

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// This test is not parallel, because a process loads its certificate authorities only one time.
func TestAContainerImageNeedsNoCertificateAuthorities(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("SSL_CERT_DIR", empty)
	t.Setenv("SSL_CERT_FILE", empty+"/none")
	pool, err := x509.SystemCertPool()
	if err != nil || pool.Equal(x509.NewCertPool()) {
		t.Errorf("no authority is trusted: %v", err)
	}
}

func TestMozillasAuthoritiesAreUsedOnlyIfTheImageHasNone(t *testing.T) {
	mozilla := trusted(nil)
	if n := strings.Count(string(mozilla), "BEGIN CERTIFICATE"); n < 50 ||
		!x509.NewCertPool().AppendCertsFromPEM(mozilla) {
		t.Errorf("for an image without certificates there are %d", n)
	}
	first, _, _ := strings.Cut(string(mozilla), "-----END CERTIFICATE-----\n")
	first += "-----END CERTIFICATE-----" // without a line break at the end of the file
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte(first), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := string(trusted([]string{"", file + "-none", os.DevNull, file})); got != first+"\n" {
		t.Errorf("an image's file became %q", got)
	}
}
