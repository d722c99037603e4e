package v1alpha1

import "k8s.io/apimachinery/pkg/util/validation/field"

// ConfigMapReference is one reference to a ConfigMap and where in the object it stands.
// +kubebuilder:object:generate=false
// +kubebuilder:ac:generate=false
type ConfigMapReference struct {
	Path *field.Path
	Ref  ConfigMapKeyRef
	// Replay says that it names a recording; any other names an image.
	Replay bool
}

// ConfigMapReferences lists every ConfigMap that this conversation refers to: its replay and its
// images.
func (c *Conversation) ConfigMapReferences() []ConfigMapReference {
	path := field.NewPath("spec")
	var refs []ConfigMapReference
	if ref := c.Spec.ReplayJSONRef; ref != nil {
		refs = append(refs, ConfigMapReference{Path: path.Child("replayJSONRef"), Ref: *ref, Replay: true})
	}
	for i, image := range c.Spec.Images {
		if ref := image.ConfigMapKeyRef; ref != nil {
			refs = append(refs, ConfigMapReference{Path: path.Child("images").Index(i).Child("configMapKeyRef"), Ref: *ref})
		}
	}
	return refs
}
