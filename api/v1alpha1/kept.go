package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// Kept is what Parley keeps for an object: a user's key in a Secret of SecretTypeUserKey, or a
// replay or image in a ConfigMap. None of these words is the end of another one behind a dash, so
// that no two owners ever share an object, whatever they are called; session, session-key and
// workspace are the operator's own.
type Kept string

// What is kept for UserSettings, beside the keys that are called as HTTP calls them: llm-api-key,
// search-api-key, sandbox-api-key.
const (
	KeptToken        Kept = "token"  // of a git provider
	KeptCustomSecret Kept = "secret" // by its name
	KeptSettingsTool Kept = "mcp"    // by the tool server and what the key is for
)

// What is kept for a Conversation.
const (
	KeptSessionTool Kept = "tool"   // by the tool server and what the key is for
	KeptReplay      Kept = "replay" // by its text
	KeptImage       Kept = "image"  // by its bytes
)

// KeptKey is where a key stands in its Secret.
const KeptKey = "key"

// KeptName is what the object is called in which something is kept for an owner. Where there may be
// several of a kind, of says which one: the provider of a token, or anything, of which the name
// holds a digest.
func KeptName(owner string, kept Kept, of ...string) string {
	name := owner + "-" + string(kept)
	switch {
	case kept == KeptToken:
		return name + "-" + strings.ReplaceAll(strings.Join(of, "-"), "_", "-")
	case len(of) > 0:
		sum := sha256.Sum256([]byte(strings.Join(of, "\x00")))
		return name + "-" + hex.EncodeToString(sum[:8])
	}
	return name
}

// What KeptName adds to the name of an owner, as regular expressions. The policy
// config/policy/facade.yaml has the same.
const (
	KeptForSettingsForm     = `^-(llm-api-key|search-api-key|sandbox-api-key|token-(github|gitlab|bitbucket|enterprise-sso)|(secret|mcp)-[0-9a-f]{16})$`
	KeptForConversationForm = `^-tool-[0-9a-f]{16}$`
	// KeptConfigMapForm has a random part behind the name, which keeps apart a deleted Conversation
	// and a new one of its name.
	KeptConfigMapForm = `^-(replay|image)-[0-9a-f]{16}-[a-z2-7]{10}$`
)

var keptForms = map[string]*regexp.Regexp{
	LabelUserSettings: regexp.MustCompile(KeptForSettingsForm),
	LabelConversation: regexp.MustCompile(KeptForConversationForm),
}

var keptConfigMap = regexp.MustCompile(KeptConfigMapForm)

// IsKeptSecretName reports whether a Secret has a name that only a key has which is kept for this
// owner. The label says what the owner is: LabelUserSettings or LabelConversation.
func IsKeptSecretName(name, label, owner string) bool {
	return keptForms[label] != nil && isKept(name, owner, keptForms[label])
}

// IsKeptConfigMapName reports whether a ConfigMap has a name that only a replay or an image of this
// Conversation has.
func IsKeptConfigMapName(name, conversation string) bool {
	return isKept(name, conversation, keptConfigMap)
}

func isKept(name, owner string, form *regexp.Regexp) bool {
	ending, found := strings.CutPrefix(name, owner)
	return owner != "" && found && form.MatchString(ending)
}
