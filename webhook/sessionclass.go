package webhook

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"strings"

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
	return nil, refusal("SessionClass", class.Name, found.errs)
}

// caBundleProblem is what is wrong with certificates as PEM. Text between them is let pass, as all
// who read them do.
func caBundleProblem(text string) string {
	begun := strings.Count(text, "-----BEGIN ")
	rest := []byte(text)
	for n := 1; n <= begun; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return fmt.Sprintf("number %d of its %d PEM blocks is cut off or damaged", n, begun)
		}
		if block.Type != "CERTIFICATE" || len(block.Headers) > 0 {
			return fmt.Sprintf("number %d of its %d PEM blocks is not a plain CERTIFICATE", n, begun)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Sprintf("number %d of its %d PEM blocks holds no valid certificate", n, begun)
		}
	}
	return ""
}
