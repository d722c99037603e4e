package rest_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/rest"
)

func decodeImage(t *testing.T, url string) (rest.Image, []rest.Detail) {
	t.Helper()
	request, details := rest.DecodeConversation([]byte(`{"image_urls": [` + string(must(json.Marshal(url))) + `]}`))
	if len(details) > 0 {
		return rest.Image{}, details
	}
	return request.ImageURLs[0], nil
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}

func TestDataURLsAreDecodedAsInBrowsers(t *testing.T) {
	t.Parallel()
	png, svg := rest.Image{MediaType: "image/png", Data: []byte("abcd")}, rest.Image{MediaType: "image/svg+xml",
		Data: []byte(`<svg a="+"/>`)}
	for url, want := range map[string]rest.Image{
		"https://example.com/a.png":               {URL: "https://example.com/a.png"},
		"nowhere":                                 {URL: "nowhere"},
		"data:image/png;base64,YWJjZA==":          png,
		"data:image/png;base64,YWJjZA":            png,
		"data:image/png;base64,YWJj%5AA%3D%3D":    png,
		"data:image/png;base64,YWJj\nZA==":        png,
		"DATA:Image/PNG;a=b;BASE64,YWJjZA==":      png,
		"data: image/png ; base64,YWJjZA==":       png,
		"data:image/png,abcd":                     png,
		"data:image/png,%61bcd":                   png,
		`data:image/svg+xml;utf8,<svg a="+"/>`:    svg,
		`data:image/svg+xml,%3Csvg%20a="%2B"/%3E`: svg,
	} {
		if got, details := decodeImage(t, url); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %+v, %v", url, got, details)
		}
	}
}

func TestImageSizeLimitCountsDecodedBytes(t *testing.T) {
	t.Parallel()
	largest := strings.Repeat("%41", rest.MaxImage)
	if _, details := decodeImage(t, "data:image/png,"+largest); len(details) > 0 {
		t.Errorf("the largest image is refused: %v", details)
	}
	if _, details := decodeImage(t, "data:image/png,"+largest+"A"); len(details) != 1 ||
		details[0].Type != rest.TypeTooLarge {
		t.Errorf("a larger one is answered with %v", details)
	}
}

func TestImagesAreStringsInJSON(t *testing.T) {
	t.Parallel()
	request := rest.ConversationRequest{ImageURLs: []rest.Image{{URL: "https://example.com/a.png"},
		{MediaType: "image/png", Data: []byte("abcd")}}}
	sent := must(json.Marshal(request))
	if want := `{"image_urls":["https://example.com/a.png","data:image/png;base64,YWJjZA=="]}`; string(sent) != want {
		t.Errorf("sent %s, want %s", sent, want)
	}
	var read rest.ConversationRequest
	if err := json.Unmarshal(sent, &read); err != nil || !reflect.DeepEqual(read, request) {
		t.Errorf("%s is read as %+v, %v", sent, read, err)
	}
}
