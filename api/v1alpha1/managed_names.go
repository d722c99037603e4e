package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// ManagedKind is a kind of object that Parley manages for an owner: a user's key in a Secret of
// SecretTypeUserKey, or a replay or image in a ConfigMap. No kind may end with -KIND, where KIND is
// another kind. Otherwise, two owners could have objects with the same name: with the kinds token
// and x-token, the owners a and a-x could both have an object a-x-token-github. For the same
// reason, no kind may be or end with session, session-key or workspace: the names of the operator's
// own objects end with these words.
type ManagedKind string

// Kinds of objects that Parley manages for UserSettings. The kinds llm-api-key, search-api-key and
// sandbox-api-key have the names of the HTTP settings for these keys.
const (
	ManagedLLMKey       ManagedKind = "llm-api-key" // object name depends on the model's endpoint
	ManagedToken        ManagedKind = "token"       // object name depends on the git provider
	ManagedCustomSecret ManagedKind = "secret"      // object name depends on the secret's name
	ManagedSettingsTool ManagedKind = "mcp"         // object name depends on the tool server and the purpose of the key
)

// Kinds of objects that Parley manages for a Conversation.
const (
	ManagedSessionTool ManagedKind = "tool"   // object name depends on the tool server and the purpose of the key
	ManagedReplay      ManagedKind = "replay" // object name depends on the recording's text
	ManagedImage       ManagedKind = "image"  // object name depends on the image's bytes
)

// ManagedSecretKey names the data entry with the value of a managed Secret.
const ManagedSecretKey = "key"

// ManagedName returns the name of an object managed for an owner. The parts distinguish objects of
// one kind. The name contains the git provider of a token, but only a digest of all other parts.
func ManagedName(owner string, kind ManagedKind, parts ...string) string {
	name := owner + "-" + string(kind)
	switch {
	case kind == ManagedToken:
		return name + "-" + strings.ReplaceAll(strings.Join(parts, "-"), "_", "-")
	case len(parts) > 0:
		sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
		return name + "-" + hex.EncodeToString(sum[:8])
	}
	return name
}

// Suffixes that ManagedName adds to the owner's name, as regular expressions. A test compares them
// with the policy config/policy/facade.yaml.
const (
	ManagedSettingsSecretSuffix = `^-(llm-api-key(-[0-9a-f]{16})?|search-api-key|sandbox-api-key|` +
		`token-(github|gitlab|bitbucket|enterprise-sso)|(secret|mcp)-[0-9a-f]{16})$`
	ManagedConversationSecretSuffix = `^-tool-[0-9a-f]{16}$`
	// ManagedConfigMapSuffix ends with a random part, which distinguishes the ConfigMaps of a
	// deleted Conversation from those of a new Conversation with the same name.
	ManagedConfigMapSuffix = `^-(replay|image)-[0-9a-f]{16}-[a-z2-7]{10}$`
)

var (
	managedSecretSuffixes = map[string]*regexp.Regexp{
		LabelUserSettings: regexp.MustCompile(ManagedSettingsSecretSuffix),
		LabelConversation: regexp.MustCompile(ManagedConversationSecretSuffix),
	}
	managedConfigMapSuffix = regexp.MustCompile(ManagedConfigMapSuffix)
)

// IsManagedSecretName reports whether this name is reserved for a Secret that Parley manages for
// this owner. The owner's label is LabelUserSettings or LabelConversation.
func IsManagedSecretName(name, ownerLabel, owner string) bool {
	suffix, known := managedSecretSuffixes[ownerLabel]
	return known && hasManagedSuffix(name, owner, suffix)
}

// IsManagedConfigMapName reports whether this name is reserved for a replay or an image of this
// Conversation.
func IsManagedConfigMapName(name, conversation string) bool {
	return hasManagedSuffix(name, conversation, managedConfigMapSuffix)
}

func hasManagedSuffix(name, owner string, form *regexp.Regexp) bool {
	suffix, found := strings.CutPrefix(name, owner)
	return owner != "" && found && form.MatchString(suffix)
}
