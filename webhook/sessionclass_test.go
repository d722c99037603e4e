package webhook

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// certificate of somebody, as PEM.
func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestACABundleIsMadeOfCertificates(t *testing.T) {
	namespace := env.Namespace(t, nil)
	one, two := certificate(t), certificate(t)
	of := func(kind, text string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(text)}))
	}
	for name, c := range map[string]struct{ bundle, says string }{
		"one":                  {one, ""},
		"several, with words":  {"# Our own\n" + one + "\n# Another one\n" + two, ""},
		"no certificate in it": {one + of("CERTIFICATE", "nothing"), "number 2 of its 2"},
		"of another kind":      {one + of("PUBLIC KEY", "anything"), "not a plain CERTIFICATE"},
		"cut off":              {one + two[:len(two)/2], "number 2 of its 2"},
		"damaged in between":   {strings.Replace(one, "-----END CERTIFICATE-----", "", 1) + two, "PEM blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "ca-" + namespace + "-"}}
			class.Spec.Network = &v1alpha1.SessionNetwork{CABundle: c.bundle}
			err := admin(t).Create(t.Context(), class)
			if c.says == "" {
				expectAccepted(t, err)
			} else {
				expectRefused(t, err, c.says, "spec.network.caBundle")
			}
		})
	}
}
