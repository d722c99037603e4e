package controllers

import (
	"cmp"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// annotationInputs identifies what a session Secret was made of, without its values.
const annotationInputs = "parley.dev/inputs"

// sessionLabels are on every object of a session.
func sessionLabels(c *v1alpha1.Conversation) map[string]string {
	return map[string]string{
		v1alpha1.LabelManagedBy:    v1alpha1.ManagedBy,
		v1alpha1.LabelComponent:    v1alpha1.ComponentSession,
		v1alpha1.LabelConversation: c.Name,
		v1alpha1.LabelUserSettings: c.Spec.UserSettingsName,
	}
}

// attemptLabels are on what is made for one attempt.
func attemptLabels(c *v1alpha1.Conversation) map[string]string {
	labels := sessionLabels(c)
	labels[v1alpha1.LabelAttempt] = strconv.Itoa(int(attemptOf(c.Status)))
	return labels
}

func sessionOwner(c *v1alpha1.Conversation) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(c, v1alpha1.SchemeGroupVersion.WithKind("Conversation"))}
}

// secretFile is a secret that a session needs: where it comes from, and its key in the session
// Secret.
type secretFile struct {
	ref  v1alpha1.SecretReference
	file string
}

// buildDocument is what a session is told, and the secrets it needs for it: no others.
func buildDocument(c *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec, life bounds) (session.Document,
	[]secretFile) {
	doc := session.Document{
		Conversation: c.Name,
		Namespace:    c.Namespace,
		UID:          string(c.UID),
		Settings:     *settings,
		FirstMessage: session.FirstMessage(&c.Spec),
		Images:       session.Images(&c.Spec),
		Replay:       c.Spec.ReplayJSONRef != nil,
		Instructions: ptr.Deref(c.Spec.ConversationInstructions, ""),
		Task:         c.Spec.SuggestedTask != nil,
		History:      c.Spec.SuggestedTask != nil && c.Spec.SuggestedTask.TaskType == v1alpha1.MergeConflicts,
		OneShot:      c.Spec.OneShot,
		IdleTimeout:  metav1.Duration{Duration: life.idleTimeout},

		StartDeadline: metav1.Duration{Duration: life.startDeadline},
	}
	var files []secretFile
	add := func(path *field.Path, ref *v1alpha1.SecretKeyRef, file string) string {
		if ref == nil {
			return ""
		}
		files = append(files, secretFile{v1alpha1.SecretReference{Path: path, Ref: *ref}, file})
		return file
	}
	path := field.NewPath("spec")
	add(path.Child("llmAPIKeyRef"), settings.LLMAPIKeyRef, session.LLMAPIKeyFile)
	add(path.Child("searchAPIKeyRef"), settings.SearchAPIKeyRef, session.SearchAPIKeyFile)
	add(path.Child("sandboxAPIKeyRef"), settings.SandboxAPIKeyRef, session.SandboxAPIKeyFile)

	doc.Repository = buildRepository(c, settings, func(i int, ref *v1alpha1.SecretKeyRef) string {
		return add(path.Child("secretsStore", "providerTokens").Index(i).Child("tokenRef"), ref, session.ProviderTokenFile)
	})
	if settings.SecretsStore != nil {
		for i, s := range settings.SecretsStore.CustomSecrets {
			at := path.Child("secretsStore", "customSecrets").Index(i).Child("secretRef")
			doc.CustomSecrets = append(doc.CustomSecrets, session.CustomSecret{
				Name: s.Name, Description: ptr.Deref(s.Description, ""), ValueFile: add(at, &s.SecretRef, fmt.Sprintf("custom.%d",
					i)),
			})
		}
	}
	if mcp := c.Spec.EffectiveMCPConfig(settings); mcp != nil {
		doc.ToolServers = buildToolServers(mcp, path.Child("mcpConfig"), add)
	}
	return doc, files
}

// buildRepository is what to clone, with the token of that repository's provider and of no other.
func buildRepository(c *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec,
	token func(int, *v1alpha1.SecretKeyRef) string) *session.Repository {
	name, provider := c.Spec.EffectiveRepository()
	if name == "" {
		return nil
	}
	var tokens []v1alpha1.ProviderToken
	if settings.SecretsStore != nil {
		tokens = settings.SecretsStore.ProviderTokens
	}
	if provider == "" {
		provider = providerOf(name, tokens)
	}
	repository := &session.Repository{Name: name, Provider: provider, Branch: ptr.Deref(c.Spec.SelectedBranch, "")}
	for i, t := range tokens {
		if t.Provider == provider {
			repository.Host, repository.UserID = ptr.Deref(t.Host, ""), ptr.Deref(t.UserID, "")
			repository.TokenFile = token(i, t.TokenRef)
		}
	}
	return repository
}

// providerOf is the provider of a repository for which none is named: the one that has a token for
// its host. owner/name is looked for at GitHub.
func providerOf(repository string, tokens []v1alpha1.ProviderToken) v1alpha1.GitProvider {
	if !strings.Contains(repository, "://") {
		return v1alpha1.GitHub
	}
	u, err := url.Parse(repository)
	if err != nil || u.Host == "" {
		return ""
	}
	for _, t := range tokens {
		if host := cmp.Or(ptr.Deref(t.Host, ""), session.PublicHost(t.Provider)); strings.EqualFold(u.Host, host) {
			return t.Provider
		}
	}
	return ""
}

func buildToolServers(mcp *v1alpha1.MCPConfig, path *field.Path, add func(*field.Path, *v1alpha1.SecretKeyRef,
	string) string) session.ToolServers {
	var servers session.ToolServers
	remote := func(list []v1alpha1.MCPRemoteServer, name, prefix string) (out []session.RemoteServer) {
		for i, s := range list {
			file := add(path.Child(name).Index(i).Child("apiKeyRef"), s.APIKeyRef, fmt.Sprintf("mcp.%s.%d", prefix, i))
			out = append(out, session.RemoteServer{URL: s.URL, APIKeyFile: file})
		}
		return out
	}
	servers.SSE = remote(mcp.SSEServers, "sseServers", "sse")
	servers.SHTTP = remote(mcp.SHTTPServers, "shttpServers", "shttp")
	for i, s := range mcp.StdioServers {
		server := session.StdioServer{Name: s.Name, Command: s.Command, Args: s.Args}
		for j, e := range s.Env {
			at := path.Child("stdioServers").Index(i).Child("env").Index(j).Child("secretRef")
			server.Env = append(server.Env, session.EnvVar{
				Name: e.Name, Value: ptr.Deref(e.Value, ""), ValueFile: add(at, e.SecretRef, fmt.Sprintf("mcp.stdio.%d.%d", i, j)),
			})
		}
		servers.Stdio = append(servers.Stdio, server)
	}
	return servers
}

// addSearch gives a session whose user has a key for it the tool that searches the web. Without one
// it is told, and says so.
func addSearch(doc *session.Document, server string) {
	switch {
	case doc.Settings.SearchAPIKeyRef == nil:
	case server == "":
		doc.SearchUnavailable = true
	default:
		doc.ToolServers.SHTTP = append(doc.ToolServers.SHTTP, session.RemoteServer{Name: "search", URL: server,
			APIKeyFile: session.SearchAPIKeyFile})
	}
}

// buildSessionSecret holds the document, the session's own key and the values it needs. It never
// changes while the session runs: a running session keeps the settings it started with.
func buildSessionSecret(c *v1alpha1.Conversation, document []byte, values map[string][]byte, key,
	inputs string) *corev1.Secret {
	data := maps.Clone(values)
	if data == nil {
		data = map[string][]byte{}
	}
	data[session.DocumentFile], data[session.KeyFile] = document, []byte(key)
	immutable := true
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: v1alpha1.SessionName(c.Name), Labels: attemptLabels(c),
			OwnerReferences: sessionOwner(c),
			Annotations:     map[string]string{annotationInputs: inputs},
		},
		Type:      v1alpha1.SecretTypeSession,
		Immutable: &immutable,
		Data:      data,
	}
}

// addArchiveToken lets a session hand over what it leaves.
func addArchiveToken(values map[string][]byte, doc session.Document, key ed25519.PrivateKey, now time.Time) error {
	if doc.ArchiveURL == "" {
		return nil
	}
	token, err := session.SignToken(key, session.Claims{Audience: session.AudienceArchive, UID: doc.UID,
		Expires: now.Add(archiveTokenLife).Unix()})
	values[session.ArchiveTokenFile] = []byte(token)
	return err
}

// inputsOf identifies what a session Secret would be made of now: the document, and the versions of
// the Secrets with the values.
func inputsOf(document []byte, files []secretFile, secrets *resolver) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n", document)
	for _, f := range files {
		if s := secrets.secrets[f.ref.Ref.Name]; s != nil {
			fmt.Fprintln(hash, f.file, s.UID, s.ResourceVersion, f.ref.Ref.Key)
		}
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}
