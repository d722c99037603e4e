package session_test

import (
	"slices"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestImagesKeepTheirOrder(t *testing.T) {
	ref := &v1alpha1.ConfigMapKeyRef{Name: "c", Key: "k"}
	got := session.Images(&v1alpha1.ConversationSpec{Images: []v1alpha1.ConversationImage{
		{ConfigMapKeyRef: ref, MediaType: ptr.To("image/png")}, {URL: ptr.To("https://example.com/a.png")},
		{ConfigMapKeyRef: ref, MediaType: ptr.To("image/jpeg")},
	}})
	want := []session.Image{{Name: "0.png", MediaType: "image/png"}, {URL: "https://example.com/a.png"},
		{Name: "2.jpg", MediaType: "image/jpeg"}}
	if !slices.Equal(got, want) {
		t.Errorf("the images are %+v, want %+v", got, want)
	}
	got = session.Images(&v1alpha1.ConversationSpec{ImageURLs: []string{"u", "v"}})
	if want := []session.Image{{URL: "u"}, {URL: "v"}}; !slices.Equal(got, want) {
		t.Errorf("the images are %+v, want %+v", got, want)
	}
}

func TestTheFileNameOfAnImageHasTheExtensionOfItsType(t *testing.T) {
	for mediaType, want := range map[string]string{
		"image/png": "3.png", "image/jpeg": "3.jpg", "image/svg+xml": "3.svg", "image/webp": "3.webp",
		"image/vnd.adobe.photoshop": "3", "image/x-icon": "3",
	} {
		if got := session.ImageName(3, mediaType); got != want {
			t.Errorf("one of %s is called %s, want %s", mediaType, got, want)
		}
	}
}
