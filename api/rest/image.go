package rest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

const (
	// MaxImage is the size limit of a decoded image, in bytes: the size limit of a ConfigMap.
	MaxImage = 1 << 20
	// maxImageURL is the longest URL of an image, in bytes. The CRD has the same limit in
	// characters.
	maxImageURL = 16384
	// TypeTooLarge is the Type of a Detail about a value that is valid but too large.
	TypeTooLarge = "bytes_too_long"
)

// Image is an image of a request: its URL or its data. In JSON it is a string. An image with data
// is written as a data URL.
type Image struct {
	// URL is empty if Data is set.
	URL string
	// MediaType is the type of Data, such as image/png.
	MediaType string
	Data      []byte
}

// MarshalJSON writes the URL, or a data URL.
func (i Image) MarshalJSON() ([]byte, error) {
	if i.Data == nil {
		return json.Marshal(i.URL)
	}
	return json.Marshal("data:" + i.MediaType + ";base64," + base64.StdEncoding.EncodeToString(i.Data))
}

// UnmarshalJSON decodes an image from a JSON string. It is for clients. Servers use
// DecodeConversation, which reports all errors.
func (i *Image) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	decoded, problem := parseImage(text)
	if problem != nil {
		return fmt.Errorf("decode image: %s", problem.Msg)
	}
	*i = decoded
	return nil
}

func image(d *decoder, loc Location, raw json.RawMessage) (Image, bool) {
	value, ok := text(d, loc, raw)
	if !ok {
		return Image{}, false
	}
	decoded, problem := parseImage(value)
	if problem != nil {
		d.fail(loc, problem.Type, problem.Msg)
		return Image{}, false
	}
	return decoded, true
}

// imageType matches the media types that the CRD accepts.
var imageType = regexp.MustCompile(`^image/[a-z0-9][-+.a-z0-9]{0,57}$`)

// parseImage decodes a data URL. For any other URL it only checks the length; the API server
// validates the rest.
func parseImage(text string) (Image, *Detail) {
	scheme, rest, _ := strings.Cut(text, ":")
	if !strings.EqualFold(scheme, "data") {
		if len(text) > maxImageURL {
			return Image{}, &Detail{Type: "string_too_long", Msg: "String should have at most " + strconv.Itoa(maxImageURL) +
				" bytes, or be a data URL"}
		}
		return Image{URL: text}, nil
	}
	header, content, _ := strings.Cut(rest, ",")
	// Only the last parameter can name the encoding. All other parameters, such as a charset, are
	// ignored.
	mediaType, parameters, _ := strings.Cut(strings.ToLower(header), ";")
	mediaType = strings.TrimSpace(mediaType)
	if !imageType.MatchString(mediaType) {
		return Image{}, &Detail{Type: "value_error", Msg: "A data URL should have an image media type, such as " +
			"data:image/png;base64,"}
	}
	last := strings.TrimSpace(parameters[strings.LastIndex(parameters, ";")+1:])
	data, err := decodeContent(content, last == "base64")
	switch {
	case err != nil:
		return Image{}, &Detail{Type: "value_error", Msg: "A data URL should hold an image in base64, or percent-encoded"}
	case len(data) == 0:
		return Image{}, &Detail{Type: "value_error", Msg: "A data URL should hold an image after its comma"}
	case len(data) > MaxImage:
		return Image{}, &Detail{Type: TypeTooLarge, Msg: "An image should have at most " + strconv.Itoa(MaxImage) + " bytes"}
	}
	return Image{MediaType: mediaType, Data: data}, nil
}

// decodeContent decodes the text after the comma of a data URL, as browsers do. Base64 may also be
// percent-encoded, and its padding may be missing.
func decodeContent(content string, isBase64 bool) ([]byte, error) {
	if strings.Contains(content, "%") {
		unescaped, err := url.PathUnescape(content)
		if err != nil {
			return nil, err
		}
		content = unescaped
	}
	if !isBase64 {
		return []byte(content), nil
	}
	return base64.RawStdEncoding.DecodeString(strings.TrimRight(content, "="))
}
