// Package session is the contract between the operator and a session's pod:
// where things are in the pod, what the session document says, and how a
// session tells why it ended.
package session

import (
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Where things are in the session's pod.
const (
	// Dir holds the session document, and nothing that is secret.
	Dir = "/run/parley/session"
	// BinDir holds the runtime, where the image does not bring its own.
	BinDir = "/run/parley/bin"
	// ReplayDir holds the replay as ReplayFile, where there is one.
	ReplayDir = "/run/parley/replay"
	// ImagesDir holds the images of the first message that come as files, where there are any.
	ImagesDir = "/run/parley/images"
	// WorkspaceDir is where the session works.
	WorkspaceDir = "/workspace"
	// HomeDir is the home directory of the session's user, in an image with a runtime of its own.
	HomeDir = "/home/session"

	// Port is where the session serves /alive, /ready and its tools.
	Port = 8080
	// AlivePath answers as soon as the runtime runs.
	AlivePath = "/alive"
	// ReadyPath answers once the workspace is prepared, the tools are served and the agent is
	// started.
	ReadyPath = "/ready"
	// AwaitReadyPath is the same for who would rather wait than ask again: it answers once the
	// session is ready, or after seconds.
	AwaitReadyPath = ReadyPath + "?wait"
	// StatusPath answers with a Status. It asks for the session's key.
	StatusPath = "/status"
	// EventsPath serves the journal by range, to the session's key or a token, and takes what the
	// user sends, with a token of the facade only. StreamPath serves it as Server-Sent Events.
	EventsPath = "/events"
	StreamPath = "/events/stream"
	// IdempotencyHeader holds a key of what a client sends: with the same key it is the same, sent
	// again. MaxIdempotencyKey is how long that may be; a UUID has 36 characters.
	IdempotencyHeader = "Idempotency-Key"
	MaxIdempotencyKey = 255
	// TokenHeader holds a token of the facade.
	TokenHeader = "X-Parley-Token"
	// ToolsPath serves the tools of all tool servers over streamable HTTP. It asks for the
	// session's key; on the loopback address that the agent is told it does not.
	ToolsPath = "/mcp"
)

// Keys of the session Secret. The document is a file in Dir; each of the others comes to the
// session's first process in the variable that SecretVariable names: a file could be read by the
// agent, which is the same user.
const (
	DocumentFile      = "session.json"
	KeyFile           = "session-key"
	LLMAPIKeyFile     = "llm-api-key"
	SearchAPIKeyFile  = "search-api-key"
	SandboxAPIKeyFile = "sandbox-api-key"
	ProviderTokenFile = "provider-token"
	// ReplayFile is in ReplayDir.
	ReplayFile = "replay.json"
)

const (
	// SecretVariables are what the names of variables with secrets begin with.
	SecretVariables = "PARLEY_SECRET_"
	// MaxSecret is the longest secret that a session can get. The kernel takes 128 KiB for a
	// variable with its name.
	MaxSecret = 100 << 10
	// PlaceholderKey is what an agent has for the model's key: the session adds the right one to
	// its calls.
	PlaceholderKey = "sk-parley-placeholder"
)

// SecretVariable is the variable with the value of a key of the session Secret.
func SecretVariable(key string) string {
	return SecretVariables + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(key))
}

// Document tells a session what it is to do. It holds no secret value: fields that end in File name
// the key of the session Secret that does.
type Document struct {
	// Conversation and Namespace name the object that this session is of.
	Conversation string `json:"conversation"`
	Namespace    string `json:"namespace"`

	// UID of that object. PublicKey, an Ed25519 one, tells tokens of the facade, which alone may
	// send messages and confirm actions.
	UID       string `json:"uid,omitempty"`
	PublicKey []byte `json:"publicKey,omitempty"`

	// Settings of the user as they were when the session started.
	Settings v1alpha1.UserSettingsSpec `json:"settings"`

	// Agent that works on the first message: the catalogue's entry of the name in the settings.
	// Without one, or where it has no command, the session serves its workspace and tools.
	Agent *Agent `json:"agent,omitempty"`

	// Repository to clone, if any.
	Repository *Repository `json:"repository,omitempty"`

	// FirstMessage to the agent, and the images that go with it, in their order.
	FirstMessage string  `json:"firstMessage,omitempty"`
	Images       []Image `json:"images,omitempty"`
	// Replay is set when ReplayDir holds a replay.
	Replay bool `json:"replay,omitempty"`
	// Instructions that hold throughout the session.
	Instructions string `json:"instructions,omitempty"`

	// Task is set where the first message is a suggested task.
	Task bool `json:"task,omitempty"`
	// History has all branches cloned with their history.
	History bool `json:"history,omitempty"`
	// OneShot ends the session after its first turn.
	OneShot bool `json:"oneShot,omitempty"`
	// SearchUnavailable is set where there is a key for a search tool, and no tool.
	SearchUnavailable bool `json:"searchUnavailable,omitempty"`

	ToolServers   ToolServers    `json:"toolServers,omitzero"`
	CustomSecrets []CustomSecret `json:"customSecrets,omitempty"`

	// CABundle are certificates of authorities, as PEM, that the session trusts beside those of its
	// image.
	CABundle string `json:"caBundle,omitempty"`

	// ArchiveURL is where the session hands over what it leaves; empty where nothing is kept.
	ArchiveURL string `json:"archiveURL,omitempty"`

	// Models that have a price.
	Models Models `json:"models,omitempty"`

	// IdleTimeout after which the session ends itself; zero means never.
	IdleTimeout metav1.Duration `json:"idleTimeout"`
	// StartDeadline by which the session must be running, counted by the operator from before its
	// pod was there; zero means DefaultStartDeadline.
	StartDeadline metav1.Duration `json:"startDeadline"`
}

// HasWork says whether there is something for an agent to do: a message, images, instructions, or a
// replay.
func (d *Document) HasWork() bool {
	return d.FirstMessage != "" || len(d.Images) > 0 || d.Instructions != "" || d.Replay
}

// Image goes with the first message: either the URL of one, or a file.
type Image struct {
	URL string `json:"url,omitempty"`
	// Name of the file in ImagesDir.
	Name string `json:"name,omitempty"`
	// MediaType of the file, such as image/png.
	MediaType string `json:"mediaType,omitempty"`
}

// DefaultStartDeadline is that of a session that is told none.
const DefaultStartDeadline = 10 * time.Minute

// Repository is what to clone.
type Repository struct {
	// Name is owner/name at the provider, or a full URL.
	Name     string               `json:"name"`
	Provider v1alpha1.GitProvider `json:"provider,omitempty"`
	// Host of the provider, where it is not the public one.
	Host string `json:"host,omitempty"`
	// UserID of the user at the provider.
	UserID string `json:"userID,omitempty"`
	// Branch to check out; empty means the default one.
	Branch string `json:"branch,omitempty"`
	// TokenFile is set when there is a token for the provider.
	TokenFile string `json:"tokenFile,omitempty"`
}

// ToolServers are the session's tool servers.
type ToolServers struct {
	SSE   []RemoteServer `json:"sse,omitempty"`
	SHTTP []RemoteServer `json:"shttp,omitempty"`
	Stdio []StdioServer  `json:"stdio,omitempty"`
}

// RemoteServer is a tool server reached over the network.
type RemoteServer struct {
	// Name that stands before its tools; without one that of its host.
	Name       string `json:"name,omitempty"`
	URL        string `json:"url"`
	APIKeyFile string `json:"apiKeyFile,omitempty"`
}

// StdioServer is a tool server run as a child of the router.
type StdioServer struct {
	Name    string   `json:"name"`
	Command string   `json:"command"`
	Args    []string `json:"args,omitempty"`
	Env     []EnvVar `json:"env,omitempty"`
}

// EnvVar is a variable whose value stands here, or in the session Secret.
type EnvVar struct {
	Name      string `json:"name"`
	Value     string `json:"value,omitempty"`
	ValueFile string `json:"valueFile,omitempty"`
}

// CustomSecret is a secret of the user for the agent's environment.
type CustomSecret struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	ValueFile   string `json:"valueFile"`
}

var publicHosts = map[v1alpha1.GitProvider]string{
	"":                 "github.com",
	v1alpha1.GitHub:    "github.com",
	v1alpha1.GitLab:    "gitlab.com",
	v1alpha1.Bitbucket: "bitbucket.org",
}

// PublicHost is where a git provider serves everybody; empty if nowhere.
func PublicHost(provider v1alpha1.GitProvider) string { return publicHosts[provider] }

// IsPublicHost says whether a host name is that of a provider who serves everybody, or below one.
func IsPublicHost(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	for _, host := range publicHosts {
		if name == host || strings.HasSuffix(name, "."+host) {
			return true
		}
	}
	return false
}
