package cluster

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// AnnotationCreatedAt contains the creation time of a Conversation with fractions of a second. The
// list of conversations is sorted by this time, because the object's creationTimestamp has only
// whole seconds.
const AnnotationCreatedAt = "parley.dev/created-at"

// maxTitle is the maximum number of bytes that the cache keeps of the first line of a message.
// Lists truncate titles further.
const maxTitle = 512

// conversationAnnotations and settingsAnnotations are the annotations that the facade reads from
// the cache, with their maximum lengths. Users can write annotations of up to 256 KiB. If an
// annotation exceeds its maximum length, only its end is kept, because the list of revoked sign-ins
// ends with the newest sign-ins.
var (
	conversationAnnotations = map[string]int{v1alpha1.AnnotationTitle: 1024, AnnotationCreatedAt: 64,
		v1alpha1.AnnotationIncomplete: 64, v1alpha1.AnnotationRequestedBy: 1024}
	settingsAnnotations = map[string]int{v1alpha1.AnnotationSettingsStored: 64,
		v1alpha1.AnnotationEndedSignIns: 16 << 10}
)

// SuspendField and RestartField are the spec fields that a message to a stopped session changes.
// The cache keeps the GitOps tools that manage them.
const (
	SuspendField = "suspend"
	RestartField = "restartAt"
)

// strip removes the fields that no response uses, so that no user can fill the facade's memory.
// Of the first message, it keeps only the first line, for the title.
func strip(object any) (any, error) {
	switch o := object.(type) {
	case *v1alpha1.Conversation:
		managers := o.CompactManagedFields(SuspendField, RestartField)
		stripMetadata(o, conversationAnnotations)
		o.ManagedFields = managers
		spec := &o.Spec
		spec.ImageURLs, spec.Images, spec.ConversationInstructions, spec.MCPConfig = nil, nil, nil, nil
		if spec.InitialUserMsg != nil {
			spec.InitialUserMsg = ptr.To(strings.Clone(firstLine(*spec.InitialUserMsg)))
		}
		for i := range o.Status.Conditions {
			o.Status.Conditions[i].Message = ""
		}
	case *v1alpha1.UserSettings:
		stripMetadata(o, settingsAnnotations)
		o.Spec.MCPConfig, o.Status.Conditions = nil, nil
		if store := o.Spec.SecretsStore; store != nil {
			store.CustomSecrets = nil
		}
	}
	return object, nil
}

func stripMetadata(o metav1.Object, annotations map[string]int) {
	var kept map[string]string
	for name, limit := range annotations {
		if value, found := o.GetAnnotations()[name]; found {
			if kept == nil {
				kept = map[string]string{}
			}
			if len(value) > limit {
				value = strings.Clone(strings.ToValidUTF8(value[len(value)-limit:], ""))
			}
			kept[name] = value
		}
	}
	o.SetAnnotations(kept)
	o.SetOwnerReferences(nil)
	o.SetFinalizers(nil)
	o.SetLabels(nil)
	o.SetManagedFields(nil)
	o.SetGenerateName("")
}

func firstLine(message string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(message), "\n")
	return strings.ToValidUTF8(line[:min(len(line), maxTitle)], "")
}
