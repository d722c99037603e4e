package driver

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/acp"
)

const (
	// maxImage is the size of the largest image that models accept. maxAllImages bounds the total
	// size of a message's images, so that the message fits into one request to the model. Both
	// sizes are in bytes. maxImageURL bounds the length of an image's URL, as in the schema of
	// Conversations.
	maxImage     = 5 << 20
	maxAllImages = 20 << 20
	maxImageURL  = 16384
	imageTimeout = 30 * time.Second
	fileScheme   = "file://"
)

// images fetches a message's images, because the agent may have no access to their hosts. An image
// that cannot be fetched or does not fit is left out, and the user and the agent are told. If ctx
// ends, images may be missing from the result.
func (d *Driver) images(ctx context.Context, agent *agentProcess, addresses []string) []acp.Content {
	var blocks []acp.Content
	size := 0
	for i, address := range addresses {
		if !agent.can.PromptCapabilities.Image {
			blocks = append(blocks, *acp.Text(fmt.Sprintf("Image %d belongs to this message, but you cannot see images.", i+1)))
			continue
		}
		data, kind, err := d.fetchImage(ctx, address)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil && size+len(data) > maxAllImages {
			err = fmt.Errorf("the images of one message may have at most %d MiB together", maxAllImages>>20)
		}
		if err != nil {
			d.Notice(fmt.Sprintf("Image %d of the message cannot be shown to the agent: %v", i+1, err))
			blocks = append(blocks, *acp.Text(fmt.Sprintf("Image %d of this message could not be fetched.", i+1)))
			continue
		}
		size += len(data)
		blocks = append(blocks, acp.Content{Type: "image", Data: base64.StdEncoding.EncodeToString(data), MimeType: kind})
	}
	return blocks
}

func (d *Driver) firstImages() []string {
	images := slices.Clone([]string(d.Input.Images))
	for i, image := range images {
		if slices.Contains(d.Input.ImageFiles, image) {
			images[i] = fileScheme + image
		}
	}
	return images
}

func (d *Driver) fetchImage(ctx context.Context, address string) (data []byte, kind string, err error) {
	file, isFile := strings.CutPrefix(address, fileScheme)
	scheme, rest, _ := strings.Cut(address, ":")
	switch {
	case isFile && slices.Contains(d.Input.ImageFiles, file): // refuse other files: a later message may name any path
		data, err = os.ReadFile(file)
	case strings.EqualFold(scheme, "data"):
		data, err = dataURL(rest)
	default:
		data, err = download(ctx, address)
	}
	if err == nil {
		kind, err = imageType(data)
	}
	return data, kind, err
}

// CheckImage returns an error if a message must not contain an image with this URL. The image
// behind an http or https URL is checked when it is fetched.
func CheckImage(address string) error {
	if scheme, rest, _ := strings.Cut(address, ":"); strings.EqualFold(scheme, "data") {
		data, err := dataURL(rest)
		if err == nil {
			_, err = imageType(data)
		}
		return err
	}
	parsed, err := url.Parse(address)
	switch {
	case len(address) > maxImageURL:
		return fmt.Errorf("its URL has more than %d bytes", maxImageURL)
	case err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "":
		return errors.New("its URL must be an http, https or data URL")
	case parsed.User != nil:
		return errors.New("its URL must not contain a user name or password")
	}
	return nil
}

// imageType returns the media type of an image that models accept. The type is detected, not taken
// from the sender, because a model rejects the whole message if the type is wrong.
func imageType(data []byte) (string, error) {
	if len(data) > maxImage {
		return "", fmt.Errorf("it is larger than %d MiB", maxImage>>20)
	}
	switch kind := http.DetectContentType(data); kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return kind, nil
	}
	return "", errors.New("it is not a PNG, JPEG, GIF or WebP image")
}

// dataURL decodes the part of a data URL after the scheme. Like browsers, it accepts
// percent-encoded base64, and base64 without padding.
func dataURL(rest string) ([]byte, error) {
	header, text, _ := strings.Cut(rest, ",")
	plain, err := url.PathUnescape(text)
	if err != nil {
		return nil, errors.New("its URL is invalid")
	}
	if !strings.HasSuffix(strings.ToLower(strings.TrimSpace(header)), ";base64") {
		return []byte(plain), nil
	}
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(plain), "="))
	if err != nil {
		return nil, errors.New("its base64 data is invalid")
	}
	return data, nil
}

func download(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, errors.New("its URL is invalid")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		// The original error contains the URL. A signed URL is a secret.
		return nil, errors.New("its host cannot be reached")
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("its host answered %s", response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxImage+1))
}
