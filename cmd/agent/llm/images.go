package llm

import (
	"bytes"
	"encoding/base64"
	"errors"
	"image"
	"image/color"
	_ "image/gif" // to read GIF images
	"image/jpeg"
	"image/png"
	"net/http"
)

const (
	// maxImageBytes is the size of the largest image that all providers accept: 5 MiB in base64.
	maxImageBytes = 5 << 20 / 4 * 3
	// maxImageSide is the longest side, in pixels, that Anthropic accepts in requests with many images.
	maxImageSide = 2000
	// scaledSide is the longest side, in pixels, of an image after NewImage scaled it down.
	// Providers scale larger images to about this size themselves.
	scaledSide = 1568
	// maxPixels limits the size of the images that NewImage scales, because scaling needs memory
	// for each pixel.
	maxPixels   = 40 << 20
	jpegQuality = 85
)

// NewImage returns the image in a form that all APIs accept, scaled if it is too large. The error
// tells the model why it cannot see the image.
func NewImage(data []byte) (*Image, error) {
	kind := http.DetectContentType(data)
	switch kind {
	case "image/png", "image/jpeg", "image/gif":
	case "image/webp":
		if len(data) > maxImageBytes {
			return nil, errors.New("it is too large")
		}
		return encodedImage(data, kind), nil
	default:
		return nil, errors.New("it is not a PNG, JPEG, GIF or WebP image")
	}
	config, _, err := image.DecodeConfig(bytes.NewReader(data))
	switch {
	case err != nil || config.Width < 1 || config.Height < 1:
		return nil, errors.New("it is damaged")
	case len(data) <= maxImageBytes && max(config.Width, config.Height) <= maxImageSide:
		return encodedImage(data, kind), nil
	case config.Width > maxPixels/config.Height:
		return nil, errors.New("it has too many pixels")
	}
	original, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, errors.New("it is damaged")
	}
	scaled := scale(original)
	var out bytes.Buffer
	if err := png.Encode(&out, scaled); err == nil && out.Len() <= maxImageBytes {
		return encodedImage(out.Bytes(), "image/png"), nil
	}
	out.Reset()
	if err := jpeg.Encode(&out, scaled, &jpeg.Options{Quality: jpegQuality}); err != nil || out.Len() > maxImageBytes {
		return nil, errors.New("it is too large")
	}
	return encodedImage(out.Bytes(), "image/jpeg"), nil
}

func encodedImage(data []byte, kind string) *Image {
	return &Image{Data: base64.StdEncoding.EncodeToString(data), MediaType: kind}
}

// scale returns the image with at most scaledSide pixels per side. Each new pixel is the average of
// the pixels that it replaces.
func scale(from image.Image) image.Image {
	bounds := from.Bounds()
	longest := max(bounds.Dx(), bounds.Dy(), scaledSide)
	to := image.NewRGBA(image.Rect(0, 0, max(1, bounds.Dx()*scaledSide/longest), max(1, bounds.Dy()*scaledSide/longest)))
	width, height := to.Bounds().Dx(), to.Bounds().Dy()
	for y := range height {
		top, bottom := bounds.Dy()*y/height, max(bounds.Dy()*(y+1)/height, bounds.Dy()*y/height+1)
		for x := range width {
			left, right := bounds.Dx()*x/width, max(bounds.Dx()*(x+1)/width, bounds.Dx()*x/width+1)
			to.SetRGBA(x, y, average(from, image.Rect(left, top, right, bottom).Add(bounds.Min)))
		}
	}
	return to
}

func average(from image.Image, box image.Rectangle) color.RGBA {
	var sum [4]uint64
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for x := box.Min.X; x < box.Max.X; x++ {
			r, g, b, a := from.At(x, y).RGBA()
			sum[0], sum[1], sum[2], sum[3] = sum[0]+uint64(r), sum[1]+uint64(g), sum[2]+uint64(b), sum[3]+uint64(a)
		}
	}
	n := uint64(box.Dx()*box.Dy()) << 8 // RGBA returns 16 bits per color
	return color.RGBA{R: uint8(sum[0] / n), G: uint8(sum[1] / n), B: uint8(sum[2] / n), A: uint8(sum[3] / n)}
}
