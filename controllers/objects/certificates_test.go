package objects

import (
	"crypto/tls"
	"crypto/x509"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const archiveHost = "parley-archive.parley-system.svc"

// completed completes a signing Secret, and returns a copy of its data.
func completed(t *testing.T, secret *corev1.Secret, now time.Time, wantChange bool) map[string][]byte {
	t.Helper()
	if changed, err := CompleteSigningSecret(secret, archiveHost, now); err != nil || changed != wantChange {
		t.Fatalf("changed: %t, %v", changed, err)
	}
	return maps.Clone(secret.Data)
}

// trusts reports whether a client that trusts the authorities in one Secret accepts the archive's
// certificate in another Secret.
func trusts(t *testing.T, client, server map[string][]byte, host string, at time.Time) bool {
	t.Helper()
	pair, err := tls.X509KeyPair(server[session.ArchiveCertificate], server[session.ArchiveKey])
	if err != nil {
		t.Fatal(err)
	}
	roots, chain := x509.NewCertPool(), x509.NewCertPool()
	if !roots.AppendCertsFromPEM(client[session.AuthorityCertificates]) {
		t.Fatal("no authorities")
	}
	for _, der := range pair.Certificate[1:] {
		intermediate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain.AddCert(intermediate)
	}
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots, Intermediates: chain, CurrentTime: at})
	return err == nil
}

func TestCertificatesAreRenewedBeforeTheyExpire(t *testing.T) {
	t.Parallel()
	now, secret := time.Now(), &corev1.Secret{}
	first := completed(t, secret, now, true)
	if !trusts(t, first, first, archiveHost, now) || trusts(t, first, first, "example.com", now) {
		t.Error("the archive's certificate is not for the archive's host")
	}
	completed(t, secret, now.Add(serverLifetime/2), false)
	later := now.Add(serverLifetime - serverLifetime/4)
	second := completed(t, secret, later, true)
	if string(second[session.AuthorityKey]) != string(first[session.AuthorityKey]) {
		t.Error("the authority was replaced too")
	}
	if at := now.Add(serverLifetime + time.Hour); !trusts(t, first, second, archiveHost, at) ||
		trusts(t, first, first, archiveHost, at) {
		t.Error("the renewed certificate does not outlast the first")
	}
	much := now.Add(authorityLifetime - authorityLifetime/4)
	if third := completed(t, secret, much, true); !trusts(t, first, third, archiveHost, much) ||
		!trusts(t, third, third, archiveHost, much) || trusts(t, first, third, archiveHost, now.Add(authorityLifetime+1)) {
		t.Error("the renewed authority is not trusted")
	}
	if changed, err := CompleteSigningSecret(secret, "other.example.com", much); err != nil || !changed ||
		!trusts(t, secret.Data, secret.Data, "other.example.com", much) {
		t.Errorf("the certificate does not follow the archive's host: %v", err)
	}
}

// A running session trusts the certificate authority that was current when the session started.
// Other clients get a new authority late, because the kubelet updates mounted files with a delay.
// All of them must therefore still trust the archive after one rotation of the authority.
func TestAClientTrustsTheArchiveAcrossOneRotationButNotTwo(t *testing.T) {
	t.Parallel()
	now, secret := time.Now(), &corev1.Secret{}
	states := []map[string][]byte{completed(t, secret, now, true)}
	for _, value := range []string{"1", "2"} {
		secret.Annotations = map[string]string{session.AnnotationRotateAuthority: value}
		states = append(states, completed(t, secret, now, true))
		completed(t, secret, now, false)
	}
	for i, client := range states {
		for k, server := range states {
			// Client and archive may be one rotation apart, but not two.
			if want := i-k < 2 && k-i < 2; trusts(t, client, server, archiveHost, now) != want {
				t.Errorf("after %d rotations a client trusts the archive after %d: %t", i, k, !want)
			}
		}
	}
}

func TestAnInvalidAuthorityIsReportedAndNotReplaced(t *testing.T) {
	t.Parallel()
	secret := &corev1.Secret{Data: map[string][]byte{session.AuthorityKey: []byte("s3cret")}}
	if _, err := CompleteSigningSecret(secret, archiveHost, time.Now()); err == nil ||
		string(secret.Data[session.AuthorityKey]) != "s3cret" {
		t.Errorf("got %v", err)
	}
}

func BenchmarkServerCertificate(b *testing.B) {
	data := map[string][]byte{}
	signer, err := addAuthority(data, nil, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := signer.issue("uid", time.Now(), time.Now().Add(serverLifetime)); err != nil {
			b.Fatal(err)
		}
	}
}

func TestOnlyParleysOwnRuntimeGetsACertificate(t *testing.T) {
	t.Parallel()
	signer, err := addAuthority(map[string][]byte{}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		image     *string
		authority *Authority
		want      bool
	}{
		"Parley's runtime": {nil, signer, true}, "an image with its own entry point": {ptr.To("x"), signer, false},
		"no authority": {nil, nil, false},
	} {
		c := makeConversation("ns", "c").Obj()
		in := SecretInputs{Document: session.Document{UID: "u"}, Authority: test.authority}
		in.Document.Settings.SandboxRuntimeContainerImage = test.image
		secret, err := Secret(c, in, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pod := Pod(c, &Start{Settings: &in.Document.Settings, Secret: secret}, "runtime")
		if got := len(secret.Data[session.ServerCertificateFile]) > 0; got != test.want ||
			(pod.Labels[v1alpha1.LabelProtocol] == v1alpha1.ProtocolHTTPS) != test.want {
			t.Errorf("%s: the session has a certificate: %t, and its pod the labels %v", name, got, pod.Labels)
		}
		t.Logf("%s: %d bytes", name, len(secret.Data[session.ServerCertificateFile]))
	}
}
