package main

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/parley-dev/parley/cmd/runtime/launch"
)

// imageAuthorities are the files that usually contain an image's trusted certificate authorities.
// Go looks in the same files.
var imageAuthorities = []string{
	"/etc/ssl/certs/ca-certificates.crt",
	"/etc/pki/tls/certs/ca-bundle.crt",
	"/etc/ssl/ca-bundle.pem",
	"/etc/pki/tls/cacert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
	"/etc/ssl/cert.pem",
}

// trust() makes this process and its children trust the authorities in bundle, in
// addition to the authorities of the container image. It sets environment variables to the paths of
// two files. Most programs use such a file instead of their own list, so the first file contains
// the authorities of the image and of bundle. Node.js uses the file in NODE_EXTRA_CA_CERTS in
// addition to its own list, so the second file contains only bundle.
//
// If the image sets SSL_CERT_FILE, the children trust the authorities in that file instead of
// imageAuthorities. This process still trusts imageAuthorities.
func trust(bundle, home string, image []string) error {
	if bundle == "" {
		return nil
	}
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(bundle)) {
		return errors.New("the CA bundle of the session's class contains no certificate")
	}
	dir := filepath.Join(home, ".parley")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("write the CA bundle: %w", err)
	}
	added, all := filepath.Join(dir, "ca-bundle.pem"), filepath.Join(dir, "ca-certificates.pem")
	for variable, file := range map[string]string{
		"SSL_CERT_FILE": all, "GIT_SSL_CAINFO": all, "CURL_CA_BUNDLE": all, "REQUESTS_CA_BUNDLE": all,
		"NODE_EXTRA_CA_CERTS": added,
	} {
		if err := os.Setenv(variable, file); err != nil {
			return err
		}
	}
	err := errors.Join(os.WriteFile(added, []byte(bundle), 0o644),
		os.WriteFile(all, append(trusted(imageAuthorities), bundle...), 0o644))
	// Go reads SSL_CERT_FILE only one time. This call makes Go read the file before the agent can
	// change it.
	if _, unread := x509.SystemCertPool(); err == nil {
		err = unread
	}
	if ofImage := launch.Lookup(image)("SSL_CERT_FILE"); err == nil && ofImage != "" {
		err = os.WriteFile(all, append(trusted(append([]string{ofImage}, imageAuthorities...)), bundle...), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the CA bundle: %w", err)
	}
	return nil
}

// trusted returns the content of the first file that contains certificates. If there is no such
// file, it returns Mozilla's list.
func trusted(files []string) []byte {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && x509.NewCertPool().AppendCertsFromPEM(text) {
			return append(bytes.TrimSpace(text), '\n')
		}
	}
	var text bytes.Buffer
	for root := range bundle.Roots() {
		// A root with constraints is left out, because a PEM file cannot express constraints.
		if root.Constraint == nil {
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer accepts every write
		}
	}
	return text.Bytes()
}
