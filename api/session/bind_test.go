package session_test

import (
	"bytes"
	"testing"

	"github.com/parley-dev/parley/api/session"
)

func TestABindRequestIsDecryptedOnlyWithItsKey(t *testing.T) {
	key, other := bytes.Repeat([]byte{1}, session.BindKeySize), bytes.Repeat([]byte{2}, session.BindKeySize)
	sealed, err := session.SealBind(key, &session.Bind{UID: "u", Attempt: 2,
		Data: map[string][]byte{session.LLMAPIKeyFile: []byte("sk-1")}})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(sealed, []byte("sk-1")) {
		t.Error("the sealed text contains the secret")
	}
	bind, err := session.OpenBind(key, sealed)
	if err != nil || bind.UID != "u" || bind.Attempt != 2 || string(bind.Data[session.LLMAPIKeyFile]) != "sk-1" {
		t.Errorf("opened %+v, %v", bind, err)
	}
	for name, open := range map[string]func() error{
		"another key":   func() error { _, err := session.OpenBind(other, sealed); return err },
		"a short key":   func() error { _, err := session.OpenBind(key[:16], sealed); return err },
		"a changed bit": func() error { _, err := session.OpenBind(key, flipped(sealed)); return err },
		"no text":       func() error { _, err := session.OpenBind(key, nil); return err },
		"as a response": func() error { _, err := session.OpenBound(key, nil, sealed); return err },
	} {
		if open() == nil {
			t.Errorf("%s: the text opened", name)
		}
	}
}

func TestAResponseToAnotherBindRequestIsRefused(t *testing.T) {
	key := bytes.Repeat([]byte{1}, session.BindKeySize)
	response, err := session.SealBound(key, []byte("first"), &session.Bound{UID: "u", Attempt: 1, Ready: true})
	if err != nil {
		t.Fatal(err)
	}
	if bound, err := session.OpenBound(key, []byte("first"), response); err != nil || !bound.Ready || bound.UID != "u" {
		t.Errorf("opened %+v, %v", bound, err)
	}
	if _, err := session.OpenBound(key, []byte("second"), response); err == nil {
		t.Error("the response to another Bind opened")
	}
}

func flipped(text []byte) []byte {
	text = bytes.Clone(text)
	text[len(text)-1] ^= 1
	return text
}
