package main_test

import (
	"bytes"
	"image"
	"image/png"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func TestAConversationWithImagesButNoMessageStartsItsAgent(t *testing.T) {
	images := t.TempDir()
	write(t, filepath.Join(images, "0.png"), "a picture")
	p := newPod(t, session.Document{
		Images: []session.Image{{Name: "0.png", MediaType: "image/png"}, {URL: "https://example.com/b.png"},
			{Name: "2.jpg", MediaType: "image/jpeg"}},
		Agent: agent(`echo "all: {{.Images}}, addresses: {{.ImageURLs}}, files: {{.ImageFiles}}, the first: $(cat {{index ` +
			`.ImageFiles 0}})"`),
	})
	p.image = []string{"PARLEY_IMAGES_DIR=" + images}
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonCompleted {
		t.Fatalf("it ended with status %d: %+v", code, got)
	}
	first, third := filepath.Join(images, "0.png"), filepath.Join(images, "2.jpg")
	want := "all: " + first + " https://example.com/b.png " + third + ", addresses: https://example.com/b.png, files: " +
		first + " " + third + ", the first: a picture\n"
	if !strings.Contains(p.output(), want) {
		t.Errorf("it printed\n%s\nwant\n%s", p.output(), want)
	}
}

func TestAConversationWithOnlyAnImageURLStartsItsAgent(t *testing.T) {
	p := newPod(t, session.Document{Images: []session.Image{{URL: "https://example.com/a.png"}},
		Agent: agent(`echo "look at {{.Images}}"`)})
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonCompleted || !strings.Contains(p.output(),
		"look at https://example.com/a.png\n") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}

// If the model's provider refuses images, the agent sends a note instead, and the model answers the
// message.
func TestALaterMessageCanContainImages(t *testing.T) {
	const image = `"data:image/png;base64,` + pixel + `"`
	p, model := scripted(t, nil, says("Hello."), says("I see."), scriptedmodel.Step{Failure: &scriptedmodel.Failure{
		Kind: scriptedmodel.BadRequest, Message: "Invalid content type. image_url is only supported by certain models."}},
		says("I cannot see."))
	ends := func(turns int) {
		t.Helper()
		eventually(t, "the turn ends", func() bool {
			ended := "agent_state_changed " + string(session.StateAwaiting)
			return strings.Count(strings.Join(p.eventLines(t), "\n"), ended) == turns
		})
	}
	p.start(t)
	ends(1)
	p.send(t, `{"action":"message","args":{"content":"Look.","image_urls":[`+image+`]}}`)
	ends(2)
	p.send(t, `{"action":"message","args":{"content":"","image_urls":[`+image+`,`+image+`]}}`)
	ends(3)
	var images []int
	for _, request := range model.Requests() {
		images = append(images, imagesOf(request))
	}
	if want := []int{0, 1, 3, 0}; !slices.Equal(images, want) {
		t.Errorf("the requests have %v images, want %v", images, want)
	}
	events := strings.Join(p.eventLines(t), "\n")
	for _, want := range []string{"I see.", "notice  The model's provider refused images", "I cannot see."} {
		if !strings.Contains(events, want) {
			t.Errorf("%q is not in\n%s", want, events)
		}
	}
}

// The model proxy refuses requests larger than 32 MiB. All pictures of this session together are
// larger, so the agent omits the earlier pictures from its last request.
func TestEarlierPicturesAreOmittedFromTooLargeModelRequests(t *testing.T) {
	viewing := func(names ...string) (step scriptedmodel.Step) {
		for _, name := range names {
			step.Calls = append(step.Calls, scriptedmodel.Call{Name: "str_replace_editor",
				Input: scriptedmodel.Input(map[string]any{"command": "view", "path": name})})
		}
		return step
	}
	p, model := scripted(t, func(doc *session.Document) { doc.Settings.EnableDefaultCondenser = ptr.To(false) },
		viewing("0.png", "1.png", "2.png", "3.png"), says("One."), viewing("4.png", "5.png", "6.png", "7.png"), says("Two."))
	noise := image.NewGray(image.Rect(0, 0, 1900, 1900))
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise.Pix)
	var picture bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.NoCompression}).Encode(&picture, noise); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		write(t, filepath.Join(p.workspace, strconv.Itoa(i)+".png"), picture.String())
	}
	p.start(t)
	hears := func(text string) {
		t.Helper()
		eventually(t, "the agent says "+text, func() bool {
			return strings.Contains(strings.Join(p.eventLines(t), "\n"), text)
		})
	}
	hears("One.")
	p.send(t, `{"action":"message","args":{"content":"And the others."}}`)
	hears("Two.")
	requests := model.Requests()
	if got := imagesOf(requests[len(requests)-1]); got != 4 {
		t.Errorf("the last request has %d images", got)
	}
	if events := strings.Join(p.eventLines(t), "\n"); !strings.Contains(events, "cannot see earlier images any more") {
		t.Errorf("the events are\n%s", events)
	}
}
