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

func TestTheCABundleMustContainValidCertificates(t *testing.T) {
	namespace := env.Namespace(t, nil)
	one, two := certificate(t), certificate(t)
	block := func(kind, text string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(text)}))
	}
	for name, c := range map[string]struct{ bundle, message string }{
		"one certificate":                {one, ""},
		"several certificates with text": {"# Our own\n" + one + "\n# Another one\n" + two, ""},
		"an invalid certificate":         {one + block("CERTIFICATE", "nothing"), "PEM block 2 of 2"},
		"another type":                   {one + block("PUBLIC KEY", "anything"), "must have the type CERTIFICATE"},
		"truncated":                      {one + two[:len(two)/2], "PEM block 2 of 2"},
		"damaged in the middle":          {strings.Replace(one, "-----END CERTIFICATE-----", "", 1) + two, "PEM block"},
	} {
		t.Run(name, func(t *testing.T) {
			class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "ca-" + namespace + "-"}}
			class.Spec.Network = &v1alpha1.SessionNetwork{CABundle: c.bundle}
			err := admin(t).Create(t.Context(), class)
			if c.message == "" {
				expectAccepted(t, err)
			} else {
				expectRefused(t, err, c.message, "spec.network.caBundle")
			}
		})
	}
}

func TestTheSelectorOfWarmPodsMustBeValid(t *testing.T) {
	namespace := env.Namespace(t, nil)
	for name, c := range map[string]struct {
		operator metav1.LabelSelectorOperator
		message  string
	}{
		"an operator":         {metav1.LabelSelectorOpIn, ""},
		"an unknown operator": {"Like", "spec.warm.namespaceSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			class := &v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "warm-" + namespace + "-"}}
			class.Spec.Warm = &v1alpha1.WarmPods{Size: 1, NamespaceSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: c.operator, Values: []string{"a"}}}}}
			err := admin(t).Create(t.Context(), class)
			if c.message == "" && err != nil || c.message != "" && (err == nil || !strings.Contains(err.Error(), c.message)) {
				t.Errorf("the answer is %v", err)
			}
		})
	}
}
