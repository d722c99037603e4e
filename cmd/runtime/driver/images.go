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
	// maxImage is the size in bytes of the largest image that models accept.
	maxImage     = 5 << 20
	imageTimeout = 30 * time.Second
	fileScheme   = "file://"
)

// images fetches a message's images, because the agent may have no access to their hosts. If an
// image cannot be fetched, the user and the agent are told, and the message is sent without it.
func (d *Driver) images(ctx context.Context, agent *agentProcess, addresses []string) []acp.Content {
	var blocks []acp.Content
	for i, address := range addresses {
		if !agent.can.PromptCapabilities.Image {
			blocks = append(blocks, *acp.Text(fmt.Sprintf("Image %d belongs to this message, but you cannot see images.", i+1)))
			continue
		}
		data, kind, err := d.fetchImage(ctx, address)
		if err != nil {
			d.Notice(fmt.Sprintf("Image %d of the message cannot be shown to the agent: %v", i+1, err))
			blocks = append(blocks, *acp.Text(fmt.Sprintf("Image %d of this message could not be fetched.", i+1)))
			continue
		}
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
	case isFile && slices.Contains(d.Input.ImageFiles, file): // no other files: later messages may name any path
		data, err = os.ReadFile(file)
	case strings.EqualFold(scheme, "data"):
		data, err = dataURL(rest)
	default:
		data, err = download(ctx, address)
	}
	if err != nil {
		return nil, "", err
	}
	if len(data) > maxImage {
		return nil, "", fmt.Errorf("it is larger than %d MiB", maxImage>>20)
	}
	// Detect the image type instead of trusting the sender. A model rejects the whole message if
	// the type is wrong.
	kind = http.DetectContentType(data)
	switch kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return data, kind, nil
	}
	return nil, "", errors.New("it is not a PNG, JPEG, GIF or WebP image")
}

func dataURL(rest string) ([]byte, error) {
	header, text, _ := strings.Cut(rest, ",")
	if strings.HasSuffix(strings.ToLower(strings.TrimSpace(header)), ";base64") {
		data, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
		if err != nil {
			return nil, errors.New("its base64 data is invalid")
		}
		return data, nil
	}
	plain, err := url.PathUnescape(text)
	if err != nil {
		return nil, errors.New("its URL is invalid")
	}
	return []byte(plain), nil
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
		// The original error contains the URL, which may be signed.
		return nil, errors.New("its host cannot be reached")
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("its host answered %s", response.Status)
	}
	return io.ReadAll(io.LimitReader(response.Body, maxImage+1))
}
