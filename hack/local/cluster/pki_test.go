package cluster

import (
	"bytes"
	"crypto/ecdsa"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestSecondRunKeepsValidCertificates(t *testing.T) {
	dir := t.TempDir()
	before := ensure(t, dir)
	if after := ensure(t, dir); !sameFiles(before, after, servingCert+".crt", authority+".crt", serviceAccountKey+".key") {
		t.Error("a second run replaced valid certificates")
	}
}

func TestCertificatesAreRenewedWhenTheirAuthorityIsReplaced(t *testing.T) {
	dir := t.TempDir()
	before := ensure(t, dir)
	if err := os.Remove(filepath.Join(dir, authority+".crt")); err != nil {
		t.Fatal(err)
	}
	after := ensure(t, dir)
	if sameFiles(before, after, servingCert+".crt") {
		t.Error("a certificate outlived its authority")
	}
	if !sameFiles(before, after, etcdCert+".crt", serviceAccountKey+".key") {
		t.Error("files that this authority had not signed were replaced as well")
	}
}

func TestCertificateThatExpiresSoonIsRenewed(t *testing.T) {
	p, err := EnsurePKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	signer, err := p.load(authority)
	if err != nil {
		t.Fatal(err)
	}
	for life, want := range map[time.Duration]bool{renewBefore - time.Hour: false, renewBefore + time.Hour: true} {
		key, err := newKey()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.issue("short", template(certificates[1].subject, life), signer.Leaf, key,
			signer.PrivateKey.(*ecdsa.PrivateKey)); err != nil {
			t.Fatal(err)
		}
		pair, err := p.load("short")
		if err != nil {
			t.Fatal(err)
		}
		if got := p.stillValid(pair.Leaf, signer.Leaf, certificates[1]); got != want {
			t.Errorf("lifetime of %s: kept=%t, want %t", life, got, want)
		}
	}
}

func TestPrivateFilesAreReadableOnlyByTheirOwner(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	ensure(t, dir)
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, adminCert+".key"): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v (%v), want %v", path, info.Mode().Perm(), err, want)
		}
	}
}

func ensure(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	if _, err := EnsurePKI(dir); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = content
	}
	return files
}

func sameFiles(a, b map[string][]byte, names ...string) bool {
	for _, name := range names {
		if a[name] == nil || !bytes.Equal(a[name], b[name]) {
			return false
		}
	}
	return true
}
