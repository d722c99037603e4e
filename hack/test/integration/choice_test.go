package integration_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const pixel = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9" +
	"awAAAABJRU5ErkJggg=="

func TestAConversationCanUseItsOwnModel(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work", "llm_model": "scripted/own"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	// The session gets the changed key, but keeps its own model.
	ada.changeModel(t, "talk", map[string]any{"llm_model": "scripted/changed", "llm_api_key": "another-key"})
	ada.say(t, "talk", "again")
	ada.awaitText(t, "talk", "Two.")
	for _, request := range ada.model.Requests() {
		if request.Model != "own" {
			t.Errorf("a request is for the model %s", request.Model)
		}
	}
}

func TestALaterMessageCanContainImages(t *testing.T) {
	t.Parallel()
	ada := newPerson(t, nil, says("One."), says("Two."))
	ada.converse(t, "talk", map[string]any{"initial_user_msg": "work"})
	ada.awaitAgent(t, "talk", session.StateAwaiting)
	const path = "/api/conversations/talk/message"
	for image, want := range map[string]string{
		"data:image/svg+xml,%3Csvg/%3E": "args.image_urls[1]: it is not a PNG, JPEG, GIF or WebP image",
		"file:///etc/passwd":            "args.image_urls[1]: its URL must be an http, https or data URL",
	} {
		body := jsonOf(t, map[string]any{"message": "Look.", "image_urls": []string{pixel, image}})
		if answer := ada.wants(t, 422, "POST", path, body); !strings.Contains(answer, want) {
			t.Errorf("%s is answered with %s", image, answer)
		}
	}
	ada.wants(t, 422, "POST", path, `{"message": ""}`)
	ada.wants(t, 200, "POST", path, jsonOf(t, map[string]any{"message": "", "image_urls": []string{pixel}}))
	ada.awaitText(t, "talk", "Two.")
	images := 0
	requests := ada.model.Requests()
	for _, turn := range requests[len(requests)-1].Turns {
		images += turn.Images
	}
	if images != 1 {
		t.Errorf("the model saw %d images", images)
	}
}

func (p *person) awaitText(t *testing.T, id, text string) {
	t.Helper()
	testenv.Await(t, func() error {
		if got := texts(p.events(t, id)); !strings.HasSuffix(got, "agent: "+text) {
			return fmt.Errorf("the messages are %s", got)
		}
		return nil
	})
}
