package llm

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// picture returns an image with one color or with noise. Noise cannot be compressed.
func picture(width, height int, noise bool) image.Image {
	picture := image.NewRGBA(image.Rect(0, 0, width, height))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range picture.Pix {
		picture.Pix[i] = 200
		if noise && i%4 != 3 {
			picture.Pix[i] = byte(random.Uint32())
		}
	}
	return picture
}

func encode(t *testing.T, write func(*bytes.Buffer) error) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func pngOf(t *testing.T, p image.Image) []byte {
	t.Helper()
	return encode(t, func(out *bytes.Buffer) error { return png.Encode(out, p) })
}

func TestImagesAreScaledToTheLimitsOfTheAPIs(t *testing.T) {
	t.Parallel()
	small := pngOf(t, picture(10, 20, false))
	for name, c := range map[string]struct {
		data          []byte
		kind          string
		width, height int
	}{
		"small PNG": {small, "image/png", 10, 20},
		"small JPEG": {encode(t, func(out *bytes.Buffer) error { return jpeg.Encode(out, picture(10, 20, false), nil) }),
			"image/jpeg", 10, 20},
		"small GIF": {encode(t, func(out *bytes.Buffer) error { return gif.Encode(out, picture(10, 20, false), nil) }),
			"image/gif", 10, 20},
		"a long page":         {pngOf(t, picture(100, 9000, false)), "image/png", 17, 1568},
		"a detailed photo":    {pngOf(t, picture(1300, 1300, true)), "image/jpeg", 1300, 1300},
		"a wide strip":        {pngOf(t, picture(8000, 2, false)), "image/png", 1568, 1},
		"the wrong extension": {small, "image/png", 10, 20},
	} {
		got, err := NewImage(c.data)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		data, err := base64.StdEncoding.DecodeString(got.Data)
		config, _, configErr := image.DecodeConfig(bytes.NewReader(data))
		if err != nil || configErr != nil || got.MediaType != c.kind || http.DetectContentType(data) != c.kind ||
			config.Width != c.width || config.Height != c.height || len(got.Data) > 5<<20 {
			t.Errorf("%s: %s of %d×%d, %d bytes: %v, %v", name, got.MediaType, config.Width, config.Height, len(got.Data), err,
				configErr)
		}
	}
	for want, data := range map[string][]byte{
		"damaged":          small[:20],
		"not a PNG":        []byte("<svg/>"),
		"too large":        append([]byte("RIFF\x00\x00\x00\x00WEBPVP8 "), make([]byte, 5<<20)...),
		"not a PNG, JPEG,": append([]byte("BM"), make([]byte, 100)...),
	} {
		if _, err := NewImage(data); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestAScaledImageKeepsItsColors(t *testing.T) {
	t.Parallel()
	got := color.RGBAModel.Convert(scale(picture(4000, 3000, false)).At(700, 500))
	if want := (color.RGBA{R: 200, G: 200, B: 200, A: 200}); got != want {
		t.Errorf("got %v", got)
	}
}

func TestToolNamesAreMadeValidForTheAPIs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"execute_bash": "execute_bash", "functions.execute_bash": "functions_execute_bash", "": "unknown",
		"größe": "gr__e", strings.Repeat("x", 70): strings.Repeat("x", 64),
	} {
		if got := MakeName(name); got != want || !ValidName(got) || ValidName(name) != (name == want) {
			t.Errorf("%q: got %q", name, got)
		}
	}
}
