package webhook

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// These constants limit a whole object. The schema limits only single fields.
const (
	// maxConversationText is the maximum number of bytes of all texts of a Conversation.
	// maxToolText is the maximum for all tool servers of an object. Much longer texts would not fit
	// into the session's Secret, which can have at most 1 MiB.
	maxConversationText = 640 << 10
	maxToolText         = 128 << 10
	// maxVariables is the maximum number of environment variables of all tool servers together. The
	// schema allows 2048. So many variables would cost the API server 0.5 s of CPU time at each write,
	// even at a write of the status.
	maxVariables = 256
	// maxSecrets is the maximum number of Secrets that an object may refer to. The webhook asks the
	// API server about each of them. The facade has the same limit for the keys in one request.
	maxSecrets = 256
	// maxGuessed is the maximum number of bytes that the webhook searches for literal keys.
	maxGuessed = 64 << 10
)

func textSize(spec *v1alpha1.ConversationSpec) int {
	size := len(ptr.Deref(spec.InitialUserMsg, "")) + len(ptr.Deref(spec.ConversationInstructions, "")) +
		toolSize(spec.MCPConfig)
	for _, url := range spec.ImageURLs {
		size += len(url)
	}
	for _, image := range spec.Images {
		size += len(ptr.Deref(image.URL, ""))
	}
	return size
}

func toolSize(config *v1alpha1.MCPConfig) (size int) {
	if config == nil {
		return 0
	}
	ref := func(r *v1alpha1.SecretKeyRef) {
		if r != nil {
			size += len(r.Name) + len(r.Key)
		}
	}
	for _, servers := range [][]v1alpha1.MCPRemoteServer{config.SSEServers, config.SHTTPServers} {
		for _, server := range servers {
			size += len(server.URL)
			ref(server.APIKeyRef)
		}
	}
	for _, server := range config.StdioServers {
		size += len(server.Name) + len(server.Command)
		for _, arg := range server.Args {
			size += len(arg)
		}
		for _, variable := range server.Env {
			size += len(variable.Name) + len(ptr.Deref(variable.Value, ""))
			ref(variable.SecretRef)
		}
	}
	return size
}

func sizeErrors(config *v1alpha1.MCPConfig, refs []v1alpha1.SecretReference) field.ErrorList {
	tools, variables, names := field.NewPath("spec", "mcpConfig"), 0, sets.New[string]()
	if config != nil {
		for _, server := range config.StdioServers {
			variables += len(server.Env)
		}
	}
	switch {
	case toolSize(config) > maxToolText:
		return field.ErrorList{field.TooLong(tools, "", maxToolText)}
	case variables > maxVariables:
		return field.ErrorList{invalid(tools.Child("stdioServers"), fmt.Sprintf("all tool servers together may have at "+
			"most %d variables in env", maxVariables))}
	}
	for _, ref := range refs {
		if names.Insert(ref.Ref.Name); names.Len() > maxSecrets {
			return field.ErrorList{invalid(ref.Path, fmt.Sprintf("an object may refer to at most %d Secrets", maxSecrets))}
		}
	}
	return nil
}
