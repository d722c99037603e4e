package objects

import (
	"bytes"
	"encoding/base64"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestOnlySessionsOnScratchSpaceWithAnArchiveGetASnapshotKey(t *testing.T) {
	data, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	signing, err := session.ParseSigningKeys(data[session.SigningPrivateKey])
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
		secret, err := Secret(makeConversation("ns", "c").Obj(), SecretInputs{Document: c.doc, SigningKeys: signing,
			SnapshotSecrets: [][]byte{c.secret, nil}}, time.Now())
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

func TestEachSettingOfAModelChangesItsRevision(t *testing.T) {
	settings := v1alpha1.UserSettingsSpec{LLMModel: ptr.To("a/one"), LLMBaseURL: ptr.To("https://example.com"),
		LLMAPIKeyRef: &v1alpha1.SecretKeyRef{Name: "llm", Key: "key"}}
	version := corev1.Secret{ObjectMeta: metav1.ObjectMeta{UID: "u", ResourceVersion: "1"}}
	revisions := map[string]string{}
	for name, change := range map[string]func(*v1alpha1.UserSettingsSpec, *corev1.Secret){
		"nothing":           func(*v1alpha1.UserSettingsSpec, *corev1.Secret) {},
		"the model":         func(s *v1alpha1.UserSettingsSpec, _ *corev1.Secret) { s.LLMModel = ptr.To("a/two") },
		"no model":          func(s *v1alpha1.UserSettingsSpec, _ *corev1.Secret) { s.LLMModel = nil },
		"the endpoint":      func(s *v1alpha1.UserSettingsSpec, _ *corev1.Secret) { s.LLMBaseURL = nil },
		"the key's Secret":  func(_ *v1alpha1.UserSettingsSpec, s *corev1.Secret) { s.ResourceVersion = "2" },
		"another Secret":    func(_ *v1alpha1.UserSettingsSpec, s *corev1.Secret) { s.UID = "v" },
		"another key in it": func(s *v1alpha1.UserSettingsSpec, _ *corev1.Secret) { s.LLMAPIKeyRef.Key = "other" },
		"no key":            func(s *v1alpha1.UserSettingsSpec, _ *corev1.Secret) { s.LLMAPIKeyRef = nil },
	} {
		changed, secret := settings.DeepCopy(), version.DeepCopy()
		change(changed, secret)
		revision := ModelRevision(changed, secret)
		if same := revisions[revision]; same != "" {
			t.Errorf("%s and %s have the same revision", name, same)
		}
		revisions[revision] = name
		changed.Language = ptr.To("de")
		if ModelRevision(changed, secret) != revision {
			t.Errorf("%s: the language changes the revision", name)
		}
	}
}

func TestOnlySessionsThatCanChangeTheirModelHaveAModelRevision(t *testing.T) {
	data, err := session.NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	signing, err := session.ParseSigningKeys(data[session.SigningPrivateKey])
	if err != nil {
		t.Fatal(err)
	}
	talks, runs := &session.Agent{Protocol: session.ProtocolACP}, &session.Agent{Protocol: session.ProtocolCommand}
	own := v1alpha1.UserSettingsSpec{SandboxRuntimeContainerImage: ptr.To("example.com/own:1")}
	for name, c := range map[string]struct {
		doc  session.Document
		want bool
	}{
		"an agent and an archive": {session.Document{Agent: talks, ArchiveURL: "http://archive"}, true},
		"no archive":              {session.Document{Agent: talks}, false},
		"no agent":                {session.Document{ArchiveURL: "http://archive"}, false},
		"a plain command":         {session.Document{Agent: runs, ArchiveURL: "http://archive"}, false},
		"an image with a runtime": {session.Document{Agent: talks, ArchiveURL: "http://archive", Settings: own}, false},
	} {
		conversation := makeConversation("ns", "c").Obj()
		secret, err := Secret(conversation, SecretInputs{Document: c.doc, SigningKeys: signing}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pod := Pod(conversation, &Start{Settings: &c.doc.Settings, Agent: c.doc.Agent, Secret: secret}, "example.com/parley")
		if revision := secret.Labels[v1alpha1.LabelModel]; (revision != "") != c.want ||
			pod.Labels[v1alpha1.LabelModel] != revision {
			t.Errorf("%s: the Secret has the revision %q, the pod %q", name, revision, pod.Labels[v1alpha1.LabelModel])
		}
	}
}
