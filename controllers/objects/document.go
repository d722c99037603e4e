package objects

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/lifecycle"
)

// SecretFile is a secret value of a session: its source, and its key in the session's Secret.
type SecretFile struct {
	Ref v1alpha1.SecretReference
	Key string
}

// Document returns the session document, and only the secrets that the session needs. searchServer
// is the URL of the web search tool server; empty if there is none.
func Document(c *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec, bounds lifecycle.Bounds,
	searchServer string) (session.Document, []SecretFile) {
	doc := session.Document{
		Conversation:  c.Name,
		Namespace:     c.Namespace,
		UID:           string(c.UID),
		Settings:      *settings,
		FirstMessage:  session.FirstMessage(&c.Spec),
		Images:        session.Images(&c.Spec),
		Replay:        c.Spec.ReplayJSONRef != nil,
		Instructions:  ptr.Deref(c.Spec.ConversationInstructions, ""),
		Task:          c.Spec.SuggestedTask != nil,
		History:       c.Spec.SuggestedTask != nil && c.Spec.SuggestedTask.TaskType == v1alpha1.MergeConflicts,
		OneShot:       c.Spec.OneShot,
		IdleTimeout:   metav1.Duration{Duration: bounds.IdleTimeout},
		StartDeadline: metav1.Duration{Duration: bounds.StartDeadline},
	}
	var files []SecretFile
	add := func(path *field.Path, ref *v1alpha1.SecretKeyRef, file string) string {
		if ref == nil {
			return ""
		}
		files = append(files, SecretFile{v1alpha1.SecretReference{Path: path, Ref: *ref}, file})
		return file
	}
	path := field.NewPath("spec")
	add(path.Child("llmAPIKeyRef"), settings.LLMAPIKeyRef, session.LLMAPIKeyFile)
	add(path.Child("searchAPIKeyRef"), settings.SearchAPIKeyRef, session.SearchAPIKeyFile)
	add(path.Child("sandboxAPIKeyRef"), settings.SandboxAPIKeyRef, session.SandboxAPIKeyFile)

	doc.Repository = repository(c, settings, func(i int, ref *v1alpha1.SecretKeyRef) string {
		return add(path.Child("secretsStore", "providerTokens").Index(i).Child("tokenRef"), ref, session.ProviderTokenFile)
	})
	for i, s := range ptr.Deref(settings.SecretsStore, v1alpha1.SecretsStore{}).CustomSecrets {
		at := path.Child("secretsStore", "customSecrets").Index(i).Child("secretRef")
		doc.CustomSecrets = append(doc.CustomSecrets, session.CustomSecret{Name: s.Name,
			Description: ptr.Deref(s.Description, ""), ValueFile: add(at, &s.SecretRef, fmt.Sprintf("custom.%d", i))})
	}
	if mcp := c.Spec.EffectiveMCPConfig(settings); mcp != nil {
		doc.ToolServers = toolServers(mcp, path.Child("mcpConfig"), add)
	}
	addSearchServer(&doc, searchServer)
	return doc, files
}

// repository returns the repository to clone. The result refers only to the token of the
// repository's provider.
func repository(c *v1alpha1.Conversation, settings *v1alpha1.UserSettingsSpec,
	token func(int, *v1alpha1.SecretKeyRef) string) *session.Repository {
	name, provider := c.Spec.EffectiveRepository()
	if name == "" {
		return nil
	}
	tokens := ptr.Deref(settings.SecretsStore, v1alpha1.SecretsStore{}).ProviderTokens
	if provider == "" {
		provider = providerOf(name, tokens)
	}
	repo := &session.Repository{Name: name, Provider: provider, Branch: ptr.Deref(c.Spec.SelectedBranch, "")}
	for i, t := range tokens {
		if t.Provider == provider {
			repo.Host, repo.UserID = ptr.Deref(t.Host, ""), ptr.Deref(t.UserID, "")
			repo.TokenFile = token(i, t.TokenRef)
		}
	}
	return repo
}

// providerOf guesses the provider of a repository. For a URL, this is the provider of the user's
// token for the same host; empty if there is no such token. For owner/name, it is GitHub.
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

func toolServers(mcp *v1alpha1.MCPConfig, path *field.Path, add func(*field.Path, *v1alpha1.SecretKeyRef,
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

// addSearchServer adds the web search tool if the user has a search key. Without a search server,
// it marks the tool as unavailable.
func addSearchServer(doc *session.Document, server string) {
	switch {
	case doc.Settings.SearchAPIKeyRef == nil:
	case server == "":
		doc.SearchUnavailable = true
	default:
		doc.ToolServers.SHTTP = append(doc.ToolServers.SHTTP, session.RemoteServer{Name: "search", URL: server,
			APIKeyFile: session.SearchAPIKeyFile})
	}
}
