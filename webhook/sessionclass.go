package webhook

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

type sessionClassValidator struct{}

var _ admission.Validator[*v1alpha1.SessionClass] = sessionClassValidator{}

func (v sessionClassValidator) ValidateCreate(_ context.Context, class *v1alpha1.SessionClass) (admission.Warnings,
	error) {
	return v.validate(class)
}

func (v sessionClassValidator) ValidateUpdate(_ context.Context, _, class *v1alpha1.SessionClass) (admission.Warnings,
	error) {
	return v.validate(class)
}

func (sessionClassValidator) ValidateDelete(context.Context, *v1alpha1.SessionClass) (admission.Warnings, error) {
	return nil, nil
}

func (sessionClassValidator) validate(class *v1alpha1.SessionClass) (admission.Warnings, error) {
	found, bundle := &findings{}, class.Spec.CABundle()
	found.check(field.NewPath("spec", "network", "caBundle"), &bundle, caBundleProblem)
	if warm := class.Spec.Warm; warm != nil {
		if _, err := metav1.LabelSelectorAsSelector(warm.NamespaceSelector); err != nil {
			found.errs = append(found.errs, invalid(field.NewPath("spec", "warm", "namespaceSelector"), err.Error()))
		}
	}
	return nil, refusal("SessionClass", class.Name, found.errs)
}

// caBundleProblem returns the problem of a PEM bundle of certificates; empty means that it is
// valid. Like all PEM readers, it ignores text between the certificates.
func caBundleProblem(text string) string {
	blocks := strings.Count(text, "-----BEGIN ")
	rest := []byte(text)
	for n := 1; n <= blocks; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return fmt.Sprintf("PEM block %d of %d is truncated or damaged", n, blocks)
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			return fmt.Sprintf("PEM block %d of %d must have the type CERTIFICATE and no headers", n, blocks)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Sprintf("PEM block %d of %d is not a valid certificate", n, blocks)
		}
	}
	return ""
}
