// Package session is the contract between the operator and a session's pod: the paths in the pod,
// the session document, and the termination message.
package session

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Paths, ports and headers of the session's pod.
const (
	// Dir holds the session document, which has no secrets.
	Dir = "/run/parley/session"
	// BinDir holds the runtime if the image does not contain it.
	BinDir = "/run/parley/bin"
	// ReplayDir holds the file ReplayFile, if the session has a replay.
	ReplayDir = "/run/parley/replay"
	// ImagesDir holds the image files of the first message, if any.
	ImagesDir = "/run/parley/images"
	// WorkspaceDir is the session's working directory.
	WorkspaceDir = "/workspace"
	// HomeDir is the home directory in a container that runs a third-party runtime instead of
	// Parley's runtime.
	HomeDir = "/home/session"

	// Port serves all endpoints of the session.
	Port = 8080
	// AlivePath answers as soon as the runtime runs.
	AlivePath = "/alive"
	// ReadyPath answers with success as soon as the workspace is prepared, the tools are served and
	// the agent can start.
	ReadyPath = "/ready"
	// AwaitReadyPath responds as soon as the session is ready, or after a few seconds.
	AwaitReadyPath = ReadyPath + "?wait"
	// StatusPath answers with a Status. It requires the session's key.
	StatusPath = "/status"
	// EventsPath serves ranges of the journal. A GET requires the session's key or a token. A POST
	// adds a user's event, and requires a token of the facade. StreamPath serves the journal as
	// Server-Sent Events.
	EventsPath = "/events"
	StreamPath = "/events/stream"
	// IdempotencyHeader contains the idempotency key of a client's event: an event with the same
	// key is a retry. MaxIdempotencyKey bounds the length of this key; a UUID has 36 characters.
	IdempotencyHeader = "Idempotency-Key"
	MaxIdempotencyKey = 255
	// TokenHeader contains a token of the facade.
	TokenHeader = "X-Parley-Token"
	// ToolsPath serves the tools of all tool servers over streamable HTTP. It requires the
	// session's key, except on the agent's loopback address.
	ToolsPath = "/mcp"
)

// Keys of the session Secret. Only the value of DocumentFile is mounted as a file, in Dir. The
// agent runs as the same Unix user as the session and could read files. The session's first process
// therefore gets the other values as environment variables, which SecretVariable names.
const (
	DocumentFile      = "session.json"
	KeyFile           = "session-key"
	LLMAPIKeyFile     = "llm-api-key"
	SearchAPIKeyFile  = "search-api-key"
	SandboxAPIKeyFile = "sandbox-api-key"
	ProviderTokenFile = "provider-token"
	// ServerCertificateFile contains the session's certificate and its private key, as PEM. The
	// certificate's name is the Conversation's UID.
	ServerCertificateFile = "server-certificate"
	// ReplayFile is not a key of the Secret, but the name of a file in ReplayDir.
	ReplayFile = "replay.json"
)

const (
	// SecretVariables is the prefix of variables with secrets.
	SecretVariables = "PARLEY_SECRET_"
	// MaxSecret is the longest secret of a session, in bytes. The kernel limits an environment
	// variable, including its name, to 128 KiB.
	MaxSecret = 100 << 10
	// PlaceholderKey is the agent's key for the model. The session replaces it with the real key.
	PlaceholderKey = "sk-parley-placeholder"
)

// SecretVariable returns the name of the environment variable for a key of the session Secret.
func SecretVariable(key string) string {
	return SecretVariables + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(key))
}

// Document configures a session. It has no secret values: each field whose name ends in File
// contains the name of a key of the session Secret.
type Document struct {
	Conversation string `json:"conversation"`
	Namespace    string `json:"namespace"`

	// UID is the UID of the Conversation. PublicKey is an Ed25519 key that verifies tokens of the
	// facade. Only the facade may send messages and confirm actions. PreviousPublicKey is the key
	// before a rotation. It stays valid, because a facade may still sign with it.
	UID               string `json:"uid,omitempty"`
	PublicKey         []byte `json:"publicKey,omitempty"`
	PreviousPublicKey []byte `json:"previousPublicKey,omitempty"`

	// Settings are the settings of the user at the start of the session.
	Settings  v1alpha1.UserSettingsSpec `json:"settings"`
	Requested Requested                 `json:"requested,omitzero"`

	// Agent is the catalogue entry of the session's agent. If there is no agent, or if the agent has
	// no command, the session serves only its workspace and tools.
	Agent *Agent `json:"agent,omitempty"`

	Repository *Repository `json:"repository,omitempty"`

	// FirstMessage is the first message to the agent. Images are the images in this message, in
	// order.
	FirstMessage string  `json:"firstMessage,omitempty"`
	Images       []Image `json:"images,omitempty"`
	// Replay is set if ReplayDir contains a replay.
	Replay       bool   `json:"replay,omitempty"`
	Instructions string `json:"instructions,omitempty"`

	// Task is set if the first message is a suggested task.
	Task bool `json:"task,omitempty"`
	// If History is true, all branches are cloned with their history.
	History bool `json:"history,omitempty"`
	// If OneShot is true, the session ends after its first turn.
	OneShot bool `json:"oneShot,omitempty"`
	// SearchUnavailable is set if the user has a key for web search, but Parley has no web search
	// tool.
	SearchUnavailable bool `json:"searchUnavailable,omitempty"`

	ToolServers   ToolServers    `json:"toolServers,omitzero"`
	CustomSecrets []CustomSecret `json:"customSecrets,omitempty"`

	// CABundle contains PEM certificates of authorities that the session trusts in addition to the
	// authorities of its image.
	CABundle string `json:"caBundle,omitempty"`

	// ArchiveURL is the URL of the archive; empty means no archive. For the archive, the session
	// trusts only the authorities in ArchiveCA (PEM). If ArchiveCA is empty, the session trusts the
	// same authorities as for other hosts.
	ArchiveURL string `json:"archiveURL,omitempty"`
	ArchiveCA  string `json:"archiveCA,omitempty"`

	// Scratch is set if the workspace is lost with the pod.
	Scratch bool `json:"scratch,omitempty"`

	Models Models `json:"models,omitempty"`

	// IdleTimeout is the idle time after which the session ends; zero means never.
	IdleTimeout metav1.Duration `json:"idleTimeout"`
	// StartDeadline is how long a start may take. The operator starts to count before it creates
	// the pod. Zero means DefaultStartDeadline.
	StartDeadline metav1.Duration `json:"startDeadline"`
}

// Requested contains the user's values of the settings that have a default in the class. If a field
// is nil, the user has set no value, and Document.Settings contains the default of the class, if
// any.
type Requested struct {
	MaxIterations         *int32  `json:"maxIterations,omitempty"`
	MaxBudgetPerTask      *string `json:"maxBudgetPerTask,omitempty"`
	ExposeGitTokenToAgent *bool   `json:"exposeGitTokenToAgent,omitempty"`
}

// RequestedSettings returns the settings without the defaults of the class.
func (d *Document) RequestedSettings() *v1alpha1.UserSettingsSpec {
	settings := d.Settings
	settings.MaxIterations, settings.MaxBudgetPerTask = d.Requested.MaxIterations, d.Requested.MaxBudgetPerTask
	settings.ExposeGitTokenToAgent = d.Requested.ExposeGitTokenToAgent
	return &settings
}

// DocumentDigestVariable is the pod's environment variable with the digest of the session document.
// The runtime compares the digest, because a user may replace the session Secret before the kubelet
// mounts it.
const DocumentDigestVariable = "PARLEY_DOCUMENT_DIGEST"

// DocumentDigest returns the digest of an encoded Document.
func DocumentDigest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// PublicKeys returns the keys that verify tokens of the facade.
func (d *Document) PublicKeys() []ed25519.PublicKey {
	return []ed25519.PublicKey{d.PublicKey, d.PreviousPublicKey}
}

// HasWork reports whether there is work for an agent: a message, images, instructions or a replay.
func (d *Document) HasWork() bool {
	return d.FirstMessage != "" || len(d.Images) > 0 || d.Instructions != "" || d.Replay
}

// CanChangeModel reports whether the session can change its model between two messages.
func (d *Document) CanChangeModel() bool {
	return d.ArchiveURL != "" && d.Agent != nil && d.Agent.Protocol == ProtocolACP &&
		d.Settings.SandboxRuntimeContainerImage == nil
}

// Image is an image of the first message: a URL or a file.
type Image struct {
	URL string `json:"url,omitempty"`
	// Name is the name of the file in ImagesDir.
	Name string `json:"name,omitempty"`
	// MediaType is the type of the file, such as image/png.
	MediaType string `json:"mediaType,omitempty"`
}

// DefaultStartDeadline applies to sessions without a StartDeadline.
const DefaultStartDeadline = 10 * time.Minute

// Repository is the repository to clone.
type Repository struct {
	// Name is owner/name at the provider, or a full URL.
	Name     string               `json:"name"`
	Provider v1alpha1.GitProvider `json:"provider,omitempty"`
	// Host is the host of the provider, if it is not the provider's public host.
	Host string `json:"host,omitempty"`
	// UserID is the ID of the user at the provider.
	UserID string `json:"userID,omitempty"`
	// Branch is the branch to check out. If it is empty, the default branch is checked out.
	Branch string `json:"branch,omitempty"`
	// TokenFile is set if there is a token for the provider.
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
	// Name is the prefix of the server's tools; the default is the server's host.
	Name       string `json:"name,omitempty"`
	URL        string `json:"url"`
	APIKeyFile string `json:"apiKeyFile,omitempty"`
}

// StdioServer is a tool server that the runtime starts as a process in the session.
type StdioServer struct {
	Name    string   `json:"name"`
	Command string   `json:"command"`
	Args    []string `json:"args,omitempty"`
	Env     []EnvVar `json:"env,omitempty"`
}

// EnvVar is an environment variable. Its value is in this document or in the session Secret.
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

// PublicHost returns the public host of a git provider, if any.
func PublicHost(provider v1alpha1.GitProvider) string { return publicHosts[provider] }

// IsPublicHost reports whether a host name is a provider's public host or a subdomain of it.
func IsPublicHost(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	for _, host := range publicHosts {
		if name == host || strings.HasSuffix(name, "."+host) {
			return true
		}
	}
	return false
}
