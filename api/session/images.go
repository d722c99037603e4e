package session

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Images returns the images of a conversation in order. Images in ConfigMaps become files in the
// session's pod.
func Images(spec *v1alpha1.ConversationSpec) []Image {
	var images []Image
	for _, url := range spec.ImageURLs {
		images = append(images, Image{URL: url})
	}
	for i, image := range spec.Images {
		if image.URL != nil {
			images = append(images, Image{URL: *image.URL})
			continue
		}
		file := Image{}
		if image.MediaType != nil {
			file.MediaType = *image.MediaType
		}
		file.Name = ImageName(i, file.MediaType)
		images = append(images, file)
	}
	return images
}

var plainSubtype = regexp.MustCompile(`^[a-z0-9]+$`)

// ImageName returns the file name of an image in a ConfigMap: its position, and the extension by
// which many programs recognize the type.
func ImageName(at int, mediaType string) string {
	subtype := strings.TrimPrefix(mediaType, "image/")
	switch {
	case subtype == "jpeg":
		subtype = "jpg"
	case subtype == "svg+xml":
		subtype = "svg"
	case !plainSubtype.MatchString(subtype):
		return strconv.Itoa(at)
	}
	return strconv.Itoa(at) + "." + subtype
}
