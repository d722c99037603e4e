package main_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAnAgentStartsForImagesWithoutAMessage(t *testing.T) {
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

func TestAnAgentStartsForImageURLsWithoutAMessage(t *testing.T) {
	p := newPod(t, session.Document{Images: []session.Image{{URL: "https://example.com/a.png"}},
		Agent: agent(`echo "look at {{.Images}}"`)})
	p.start(t)
	if code, got := p.wait(t); code != 0 || got.Reason != v1alpha1.ReasonCompleted || !strings.Contains(p.output(),
		"look at https://example.com/a.png\n") {
		t.Errorf("it ended with status %d: %+v", code, got)
	}
}
