package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func dataURL(data []byte) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(data)
}

func picture(of byte, size int) []byte { return bytes.Repeat([]byte{of, 0xff}, size/2+1)[:size] }

func withImages(t *testing.T, id string, urls ...string) string {
	t.Helper()
	return jsonOf(t, map[string]any{"conversation_id": id, "image_urls": urls})
}

func (p *person) image(t *testing.T, c *v1alpha1.Conversation, at int) (*corev1.ConfigMap, []byte) {
	t.Helper()
	ref, configMap := c.Spec.Images[at].ConfigMapKeyRef, &corev1.ConfigMap{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: ref.Name},
		configMap); err != nil {
		t.Fatal(err)
	}
	return configMap, configMap.BinaryData[ref.Key]
}

func TestImagesAreStoredInConfigMapsInOrder(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	const address, drawing = "https://example.com/a.png", "data:IMAGE/svg+xml;charset=utf-8,%3Csvg/%3E"
	screen := picture(1, 100<<10)
	body := withImages(t, "pictures", dataURL(screen), address, drawing)
	ada.post(t, "/api/conversations", body).wants(t, 200)
	c := ada.conversation(t, "pictures")
	if len(c.Spec.Images) != 3 || c.Spec.ImageURLs != nil || *c.Spec.Images[1].URL != address ||
		*c.Spec.Images[0].MediaType != "image/png" || *c.Spec.Images[2].MediaType != "image/svg+xml" {
		t.Fatalf("the images are %s and %s", jsonOf(t, c.Spec.Images), c.Spec.ImageURLs)
	}
	if c.Annotations[v1alpha1.AnnotationIncomplete] != "" || c.Spec.TTLAfterStopped != nil {
		t.Errorf("the conversation is marked incomplete: %v, %v", c.Annotations, c.Spec.TTLAfterStopped)
	}
	for at, want := range map[int][]byte{0: screen, 2: []byte("<svg/>")} {
		configMap, data := ada.image(t, c, at)
		if !bytes.Equal(data, want) || !metav1.IsControlledBy(configMap, c) || !ptr.Deref(configMap.Immutable, false) {
			t.Errorf("image %d has %d bytes, in %+v", at, len(data), configMap.ObjectMeta)
		}
	}
	t.Run("the operator finds them", func(t *testing.T) {
		pod := &corev1.Pod{}
		await(t, func() error {
			return suite.Client.Get(t.Context(), client.ObjectKey{Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name)},
				pod)
		})
		if !slices.ContainsFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool {
			return volume.Projected != nil && len(volume.Projected.Sources) == 2
		}) {
			t.Errorf("the volumes are %s", jsonOf(t, pod.Spec.Volumes))
		}
	})
	t.Run("the same request joins", func(t *testing.T) {
		ada.post(t, "/api/conversations", body).wants(t, 200)
		// This request contains the same image in another encoding.
		ada.post(t, "/api/conversations", withImages(t, "pictures", strings.TrimRight(dataURL(screen), "="), address,
			"data:image/svg+xml,<svg/>")).wants(t, 200)
		ada.post(t, "/api/conversations", `{"conversation_id": "pictures"}`).wants(t, 200)
		ada.checkImages(t, 2)
	})
	for name, urls := range map[string][]string{
		"in another order":           {address, dataURL(screen), drawing},
		"with another image":         {dataURL(picture(2, 100<<10)), address, drawing},
		"with another media type":    {strings.Replace(dataURL(screen), "png", "gif", 1), address, drawing},
		"with fewer images":          {dataURL(screen), address},
		"with data instead of a URL": {dataURL(screen), dataURL([]byte(address)), drawing},
	} {
		t.Run("a request "+name+" does not join", func(t *testing.T) {
			ada.post(t, "/api/conversations", withImages(t, "pictures", urls...)).wants(t, 409)
		})
	}
}

func (p *person) checkImages(t *testing.T, want int) {
	t.Helper()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	if err := suite.Client.List(t.Context(), list, client.InNamespace(p.namespace),
		client.HasLabels{v1alpha1.LabelConversation}); err != nil || len(list.Items) != want {
		t.Errorf("%d ConfigMaps (%v), want %d", len(list.Items), err, want)
	}
}

func TestImageURLsNeedNoConfigMap(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/conversations", withImages(t, "talk", "https://example.com/a.png",
		"https://example.com/b.png")).wants(t, 200)
	if c := ada.conversation(t, "talk"); len(c.Spec.ImageURLs) != 2 || c.Spec.Images != nil {
		t.Errorf("stored %s", jsonOf(t, c.Spec))
	}
	ada.checkImages(t, 0)
}

func TestAnIdempotencyKeyCannotBeReusedForOtherImages(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	send := func(data []byte) reply {
		return ada.post(t, "/api/conversations", jsonOf(t,
			rest.ConversationRequest{ImageURLs: []rest.Image{{MediaType: "image/png", Data: data}}}), "Idempotency-Key", "k")
	}
	first := send([]byte("one")).wants(t, 200).field(t, "conversation_id")
	if again := send([]byte("one")).wants(t, 200).field(t, "conversation_id"); again != first {
		t.Errorf("%s is not %s", again, first)
	}
	send([]byte("two")).wants(t, 409)
	ada.checkImages(t, 1)
}

func TestImagesOfOneMebibyteAreAccepted(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	// This request has as many images as fit in a body.
	ada.post(t, "/api/conversations", withImages(t, "largest", dataURL(picture(1, rest.MaxImage)),
		dataURL(picture(2, rest.MaxImage)))).wants(t, 200)
	if _, data := ada.image(t, ada.conversation(t, "largest"), 1); len(data) != rest.MaxImage {
		t.Errorf("the image has %d bytes", len(data))
	}
	ada.post(t, "/api/conversations", withImages(t, "larger", dataURL([]byte("small")),
		dataURL(picture(1, rest.MaxImage+1)))).wants(t, 413).
		complains(t, "body.image_urls.1: bytes_too_long")
	t.Run("other errors are reported too", func(t *testing.T) {
		body := jsonOf(t, map[string]any{"conversation_id": "larger", "create_microagent": "widgets",
			"image_urls": []string{"data:,x", dataURL(picture(1, rest.MaxImage+1))}})
		ada.post(t, "/api/conversations", body).wants(t, 413).
			complains(t, "body.image_urls.0: value_error", "body.image_urls.1: bytes_too_long",
				"body.create_microagent: dict_type")
	})
	t.Run("nothing of a refused request is stored", func(t *testing.T) { ada.checkImages(t, 2) })
	t.Run("a larger body is refused", func(t *testing.T) {
		three := slicesOf(3, func(i int) string { return dataURL(picture(byte(i), rest.MaxImage)) })
		ada.post(t, "/api/conversations", withImages(t, "three", three...)).wants(t, 413).says(t,
			`{"detail": "Request body too large: at most 4194304 bytes"}`)
	})
}

func slicesOf(n int, item func(int) string) (list []string) {
	for i := range n {
		list = append(list, item(i))
	}
	return list
}

func TestRepeatedImagesAreStoredOnce(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	ada.post(t, "/api/conversations", withImages(t, "twice",
		slicesOf(16, func(int) string { return dataURL([]byte("same")) })...)).wants(t, 200)
	await(t, func() error { // the API server accepts the pod
		return suite.Client.Get(t.Context(), client.ObjectKey{Namespace: ada.namespace, Name: v1alpha1.SessionName("twice")},
			&corev1.Pod{})
	})
	ada.checkImages(t, 1)
	ada.post(t, "/api/conversations", withImages(t, "seventeen",
		slicesOf(17, func(i int) string { return dataURL([]byte{byte(i)}) })...)).wants(t, 422).
		complains(t, "body.image_urls: too_long")
}

// The facade creates the Conversation first, and then a ConfigMap for each image. If it fails in
// between, a retry of the request creates the missing ConfigMaps.
func TestARetryStoresTheMissingImages(t *testing.T) {
	t.Parallel()
	for written := range 2 {
		t.Run(fmt.Sprintf("after %d ConfigMaps", written), func(t *testing.T) {
			t.Parallel()
			ada := newcomer(t)
			body := withImages(t, "cut", dataURL([]byte("one")), dataURL([]byte("two")))
			ada.served(t, &faulty{configMapsLeft: ptr.To(written)}).post(t, "/api/conversations", body).wants(t,
				http.StatusServiceUnavailable)
			half := ada.conversation(t, "cut")
			if half.Annotations[v1alpha1.AnnotationIncomplete] == "" || half.Spec.TTLAfterStopped == nil {
				t.Fatal("the partial conversation has no TTL")
			}
			ada.checkImages(t, written)
			ada.post(t, "/api/conversations", body).wants(t, 200)
			c := ada.conversation(t, "cut")
			if c.UID != half.UID || c.Annotations[v1alpha1.AnnotationIncomplete] != "" || c.Spec.TTLAfterStopped != nil {
				t.Errorf("the conversation is still incomplete: %v", c.ObjectMeta)
			}
			if _, data := ada.image(t, c, 1); string(data) != "two" {
				t.Errorf("the second image is %q", data)
			}
			ada.checkImages(t, 2)
		})
	}
}
