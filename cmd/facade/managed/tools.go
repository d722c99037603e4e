package managed

import (
	"maps"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// Tools returns the tool servers of a request and their new keys. If the request contains no key
// for a server, the server keeps its stored key.
func Tools(owner string, kind v1alpha1.ManagedKind, request *rest.MCPConfig, before *v1alpha1.MCPConfig) (
	*v1alpha1.MCPConfig, []Key) {
	if request == nil {
		return nil, nil
	}
	if before == nil {
		before = &v1alpha1.MCPConfig{}
	}
	t := &tools{owner: owner, kind: kind}
	config := &v1alpha1.MCPConfig{
		SSEServers:   t.remote("sse", request.SSEServers, before.SSEServers),
		SHTTPServers: t.remote("shttp", request.SHTTPServers, before.SHTTPServers),
	}
	for _, server := range request.StdioServers {
		config.StdioServers = append(config.StdioServers, t.stdio(server, before.StdioServers))
	}
	return config, t.keys
}

type tools struct {
	owner string
	kind  v1alpha1.ManagedKind
	keys  []Key
}

// store adds a key to the list of keys that must be written, and returns the reference to the key.
// The purpose of the key determines the name of its Secret.
func (t *tools) store(key rest.Key, of ...string) *v1alpha1.SecretKeyRef {
	stored := Key{v1alpha1.ManagedName(t.owner, t.kind, of...), *key.Value}
	t.keys = append(t.keys, stored)
	return stored.Ref()
}

func (t *tools) remote(transport string, servers []rest.MCPRemoteServer,
	before []v1alpha1.MCPRemoteServer) []v1alpha1.MCPRemoteServer {
	var list []v1alpha1.MCPRemoteServer
	for _, server := range servers {
		entry := v1alpha1.MCPRemoteServer{URL: server.URL}
		switch old := find(before, func(s v1alpha1.MCPRemoteServer) bool { return s.URL == server.URL }); {
		case server.APIKey.IsSet():
			entry.APIKeyRef = t.store(server.APIKey, transport, server.URL)
		case !server.APIKey.IsCleared():
			entry.APIKeyRef = old.APIKeyRef
		}
		list = append(list, entry)
	}
	return list
}

func (t *tools) stdio(server rest.MCPStdioServer, before []v1alpha1.MCPStdioServer) v1alpha1.MCPStdioServer {
	entry := v1alpha1.MCPStdioServer{Name: server.Name, Command: server.Command, Args: server.Args}
	old := find(before, func(s v1alpha1.MCPStdioServer) bool { return s.Name == server.Name })
	for _, name := range slices.Sorted(maps.Keys(server.Env)) {
		at := slices.IndexFunc(old.Env, func(v v1alpha1.MCPEnvVar) bool { return v.Name == name })
		switch value := server.Env[name]; {
		case value.IsSet():
			entry.Env = append(entry.Env, v1alpha1.MCPEnvVar{Name: name, SecretRef: t.store(value, "env", server.Name, name)})
		case value.IsCleared():
			entry.Env = append(entry.Env, v1alpha1.MCPEnvVar{Name: name, Value: ptr.To("")})
		case at >= 0: // keep the stored value; without a stored value, omit the variable
			entry.Env = append(entry.Env, old.Env[at])
		}
	}
	return entry
}

func find[T any](list []T, is func(T) bool) (entry T) {
	if at := slices.IndexFunc(list, is); at >= 0 {
		entry = list[at]
	}
	return entry
}
