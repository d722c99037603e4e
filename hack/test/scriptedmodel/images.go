package scriptedmodel

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	_ "image/gif"  // to check GIF images
	_ "image/jpeg" // to check JPEG images
	_ "image/png"  // to check PNG images
	"net/http"
	"strings"
)

// Anthropic limits an image's base64 text, in bytes, and its longest side, in pixels. The limit of
// the side is lower in requests with more than manyImages images.
const (
	maxImageText     = 5 << 20
	maxImageSide     = 8000
	manyImages       = 20
	maxImageSideMany = 2000
)

// imageFault returns the error with which Anthropic would refuse an image, or an empty string.
func imageFault(source object, images int) string {
	if str(source["type"]) != "base64" {
		return ""
	}
	kind, text := str(source["media_type"]), str(source["data"])
	data, err := base64.StdEncoding.DecodeString(text)
	switch {
	case !imageMediaType.MatchString(kind):
		return ".source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
	case err != nil || len(data) == 0:
		return ".source.base64.data: Invalid base64 data"
	case len(text) > maxImageText:
		return fmt.Sprintf(".source.base64: image exceeds 5 MB maximum: %d bytes > %d bytes", len(text), maxImageText)
	case http.DetectContentType(data) != kind:
		return ".source.base64.data: Image does not match the provided media type " + kind
	case kind == "image/webp":
		return ""
	}
	config, _, err := image.DecodeConfig(bytes.NewReader(data))
	switch side := max(config.Width, config.Height); {
	case err != nil:
		return ": Could not process image"
	case side > maxImageSide:
		return fmt.Sprintf(".source.base64.data: At least one of the image dimensions exceed max allowed size: %d pixels",
			maxImageSide)
	case side > maxImageSideMany && images > manyImages:
		return fmt.Sprintf(".source.base64.data: At least one of the image dimensions exceed max allowed size for "+
			"many-image requests: %d pixels", maxImageSideMany)
	}
	return ""
}

// imageURLFault returns the error with which OpenAI would refuse an image URL, or an empty string.
func imageURLFault(url string) string {
	if !imageURL.MatchString(url) {
		return "invalid image URL"
	}
	header, text, isData := strings.Cut(url, ";base64,")
	if !isData {
		return ""
	}
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil || "data:"+http.DetectContentType(data) != header {
		return "You uploaded an unsupported image. Please make sure your image is below 20 MB in size and is of one of " +
			"the following formats: ['png', 'jpeg', 'gif', 'webp']."
	}
	return ""
}
