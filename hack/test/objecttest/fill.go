// Package objecttest fills objects for fuzz tests.
package objecttest

import (
	"fmt"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// filler fills objects with texts and lists. The bytes in choices determine the lengths of these
// texts and lists.
type filler struct {
	choices []byte
	used    int
	left    int // bytes until the maximum
	keys    []string
}

// Fill sets all fields of an object. The bytes in choices determine the lengths of texts and lists;
// without choices, all are as long as possible. The texts have at most maxBytes bytes together.
// Each map of texts, such as the labels, also gets the given keys with long values.
func Fill(object any, choices []byte, maxBytes int, keys ...string) {
	(&filler{choices: choices, left: maxBytes, keys: keys}).fill(reflect.ValueOf(object).Elem())
}

func (f *filler) choose(n int) int {
	if len(f.choices) == 0 {
		return n - 1
	}
	f.used++
	return (int(f.choices[f.used%len(f.choices)]) + f.used/len(f.choices)) % n
}

func (f *filler) text(lengths ...int) string {
	n := min(lengths[f.choose(len(lengths))], f.left)
	f.left -= n
	text := fmt.Sprint("t", f.left, strings.Repeat([]string{"x", "é", "日"}[f.choose(3)], n))
	return strings.ToValidUTF8(text[:max(n, 1)], "")
}

func (f *filler) fill(v reflect.Value) {
	if f.fillSpecial(v.Addr().Interface()) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(f.text(0, 1, 60, 253, 1100, 5000, 16000, 140000))
	case reflect.Bool:
		v.SetBool(f.choose(2) == 1)
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.choose(5)))
	case reflect.Pointer:
		if f.choose(4) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				f.fill(v.Field(i))
			}
		}
	case reflect.Slice:
		n := []int{0, 1, 3, 16, 16}[f.choose(5)]
		if _, limited := v.Interface().([]v1alpha1.ConversationImage); !limited && n == 16 && f.left > 0 {
			n = 60
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			f.fill(v.Index(i))
		}
	case reflect.Map:
		if values, ok := v.Addr().Interface().(*map[string]string); ok {
			*values = map[string]string{}
			for range []int{0, 1, 200}[f.choose(3)] {
				(*values)[f.text(1, 60, 253)] = f.text(0, 60, 5000)
			}
			for _, key := range f.keys {
				(*values)[key] = f.text(1, 63, 200000)
			}
		}
	}
}

// fillSpecial fills the types whose fields depend on each other. It reports whether it filled the
// object.
func (f *filler) fillSpecial(object any) bool {
	switch object := object.(type) {
	case *v1alpha1.SecretKeyRef:
		object.Name, object.Key = f.text(8, 253), f.text(8, 253)
	case *v1alpha1.ConfigMapKeyRef:
		object.Name, object.Key = f.text(8, 253), f.text(8, 253)
	case *metav1.ManagedFieldsEntry:
		*object = metav1.ManagedFieldsEntry{Manager: f.text(8, 128), Subresource: []string{"status", ""}[f.choose(2)],
			Operation: []metav1.ManagedFieldsOperationType{"Apply", "Update"}[f.choose(2)],
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:spec":{"f:%s":{},%q:{}}}`,
				[]string{"suspend", "restartAt", "other"}[f.choose(3)], f.text(8, 140000)))}
	case *intstr.IntOrString:
		*object = intstr.FromInt32(80)
	default:
		return false
	}
	return true
}
