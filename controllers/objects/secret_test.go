package objects

import (
	"bytes"
	"encoding/base64"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
)

func TestOnlySessionsOnScratchSpaceWithAnArchiveGetASnapshotKey(t *testing.T) {
	data, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	signing, err := session.ParseSigningKey(data[session.SigningPrivateKey])
	if err != nil {
		t.Fatal(err)
	}
	master := session.NewSnapshotSecret()
	keys := map[string]bool{}
	for name, c := range map[string]struct {
		doc    session.Document
		secret []byte
		want   bool
	}{
		"scratch":                   {session.Document{UID: "a", Scratch: true, ArchiveURL: "http://archive"}, master, true},
		"another Conversation":      {session.Document{UID: "b", Scratch: true, ArchiveURL: "http://archive"}, master, true},
		"a volume":                  {session.Document{UID: "a", ArchiveURL: "http://archive"}, master, false},
		"no archive":                {session.Document{UID: "a", Scratch: true}, master, false},
		"no secret in this version": {session.Document{UID: "a", Scratch: true, ArchiveURL: "http://archive"}, nil, false},
	} {
		secret, err := Secret(makeConversation("ns", "c").Obj(), SecretInputs{Document: c.doc, SigningKey: signing,
			SnapshotSecret: c.secret}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		text := string(secret.Data[session.SnapshotKeyFile])
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || (len(key) == session.SnapshotKeySize) != c.want || keys[text] {
			t.Errorf("%s: a key of %d bytes, %v", name, len(key), err)
		}
		if c.want {
			keys[text] = true
		}
		for _, value := range secret.Data {
			if bytes.Contains(value, master) {
				t.Errorf("%s: the session has the manager's secret", name)
			}
		}
	}
}
