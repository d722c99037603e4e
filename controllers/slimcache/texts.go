package slimcache

import (
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// keptLabels and keptAnnotations are the labels and annotations that the controllers read.
var (
	keptLabels = []string{v1alpha1.LabelManagedBy, v1alpha1.LabelUserSettings, v1alpha1.LabelConversation,
		v1alpha1.LabelAttempt, v1alpha1.LabelSessionClass, v1alpha1.LabelWorkspace, v1alpha1.LabelModel,
		v1alpha1.LabelProtocol, v1alpha1.LabelWarm}
	keptAnnotations = []string{v1alpha1.AnnotationModel, v1alpha1.AnnotationWrittenAt, v1alpha1.AnnotationIncomplete,
		v1alpha1.AnnotationRequestedBy, v1alpha1.AnnotationPod, annotationTruncated,
		"storageclass.kubernetes.io/is-default-class"}
)

// trimMetadata keeps the identity of an object, its controlling owner, and the labels and
// annotations that the controllers read. It drops finalizers and other owners. It also drops a
// controlling owner with long fields. All these fields could fill the cache, because the API server
// does not limit their number or length.
func trimMetadata(o metav1.Object) {
	var owners []metav1.OwnerReference
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil &&
		len(owner.APIVersion)+len(owner.Kind)+len(owner.Name)+len(owner.UID) <= MaxText {
		owners = []metav1.OwnerReference{*owner}
	}
	o.SetOwnerReferences(owners)
	o.SetLabels(pick(keptLabels, o.GetLabels(), maxName))
	o.SetAnnotations(pick(keptAnnotations, o.GetAnnotations(), MaxText))
	o.SetManagedFields(nil)
	o.SetFinalizers(nil)
	o.SetGenerateName("")
}

// pick returns the entries of a map that have one of these keys. It truncates each value to at
// most limit bytes.
func pick(keys []string, all map[string]string, limit int) (kept map[string]string) {
	for _, key := range keys {
		if value, found := all[key]; found {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = shorten(value, limit)
		}
	}
	return kept
}

// shorten truncates a text. It returns a copy, so that the memory of the whole text can be freed.
func shorten(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.Clone(lifecycle.Truncate(text, n))
}

// elementSize is the number of bytes that measure() adds for each element of a list.
const elementSize = 16

// measure returns the size of all texts in a value together, and the size of the longest text, in
// bytes.
func measure(v reflect.Value) (total, longest int) {
	add := func(more, long int) { total, longest = total+more, max(longest, long) }
	switch v.Kind() {
	case reflect.String:
		add(v.Len(), v.Len())
	case reflect.Pointer:
		if !v.IsNil() {
			add(measure(v.Elem()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Field(i); field.CanInterface() {
				add(measure(field))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			add(measure(v.Index(i)))
			total += elementSize
		}
	}
	return total, longest
}

// truncateTexts truncates each text in a value to at most n bytes.
func truncateTexts(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.String:
		if v.Len() > n {
			v.SetString(shorten(v.String(), n))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			truncateTexts(v.Elem(), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Field(i); field.CanSet() {
				truncateTexts(field, n)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			truncateTexts(v.Index(i), n)
		}
	}
}
