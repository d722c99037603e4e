package webhook

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// checkReceivers refuses an update by Parley that sends an administrator's key to another receiver.
// checkSecrets accepts such an update: it checks only the references that Parley adds, and here the
// reference stays the same. Keys that Parley manages for these settings may go to any receiver,
// because the user of the settings stored them.
func (r request) checkReceivers(ctx context.Context, old, settings *v1alpha1.UserSettings, f *findings) error {
	managed := map[string]bool{}
	for _, reference := range diverted(old, settings) {
		name := reference.Ref.Name
		if _, known := managed[name]; !known {
			var err error
			if managed[name], err = r.managesSecret(ctx, name); err != nil {
				return err
			}
		}
		if !managed[name] {
			f.errs = append(f.errs, invalid(reference.Path, "an administrator set this key, and the change would send it "+
				"to another endpoint, tool server or image: ask an administrator to make the change"))
		}
	}
	return nil
}

// delivery is a field's reference to a key, and the receiver of this key.
type delivery struct {
	place
	receiver string
}

// diverted returns the references that both versions of the settings contain, but whose keys go to
// another receiver in the new version.
func diverted(old, settings *v1alpha1.UserSettings) (refs []v1alpha1.SecretReference) {
	places, deliveries := sets.New[place](), sets.New[delivery]()
	before, after := receivers(&old.Spec), receivers(&settings.Spec)
	for _, r := range old.SecretReferences() {
		places.Insert(placeOf(r))
		deliveries.Insert(delivery{placeOf(r), before[r.Path.String()]})
	}
	imagesChanged := !ptr.Equal(old.Spec.SandboxBaseContainerImage, settings.Spec.SandboxBaseContainerImage) ||
		!ptr.Equal(old.Spec.SandboxRuntimeContainerImage, settings.Spec.SandboxRuntimeContainerImage)
	for _, r := range settings.SecretReferences() {
		// If the image changes, another program gets all keys of the session. The user's session key is
		// not one of them: no session gets it.
		toImage := imagesChanged && r.Condition != v1alpha1.ConditionSessionKeyReady
		if places.Has(placeOf(r)) && (toImage || !deliveries.Has(delivery{placeOf(r), after[r.Path.String()]})) {
			refs = append(refs, r)
		}
	}
	return refs
}

// receivers maps the path of a reference to the endpoint, git host, tool server or program that
// receives the key. Other references are absent.
func receivers(spec *v1alpha1.UserSettingsSpec) map[string]string {
	path := field.NewPath("spec")
	byPath := map[string]string{path.Child("llmAPIKeyRef").String(): spec.ModelEndpoint()}
	tokens := ptr.Deref(spec.SecretsStore, v1alpha1.SecretsStore{}).ProviderTokens
	for i, token := range tokens {
		byPath[path.Child("secretsStore", "providerTokens").Index(i).Child("tokenRef").String()] =
			string(token.Provider) + " " + ptr.Deref(token.Host, "")
	}
	tools := ptr.Deref(spec.MCPConfig, v1alpha1.MCPConfig{})
	path = path.Child("mcpConfig")
	for list, servers := range map[string][]v1alpha1.MCPRemoteServer{
		"sseServers": tools.SSEServers, "shttpServers": tools.SHTTPServers,
	} {
		for i, server := range servers {
			byPath[path.Child(list).Index(i).Child("apiKeyRef").String()] = server.URL
		}
	}
	for i, server := range tools.StdioServers {
		program := programOf(server)
		for j, variable := range server.Env {
			byPath[path.Child("stdioServers").Index(i).Child("env").Index(j).Child("secretRef").String()] =
				variable.Name + " " + program
		}
	}
	return byPath
}

// programOf identifies the program, the arguments and the variables of a tool server. The order of
// the variables does not matter.
func programOf(server v1alpha1.MCPStdioServer) string {
	env := slices.SortedFunc(slices.Values(server.Env), func(a, b v1alpha1.MCPEnvVar) int {
		return cmp.Compare(a.Name, b.Name)
	})
	program := &strings.Builder{}
	_, _ = fmt.Fprintf(program, "%q %q", server.Command, server.Args)
	for _, variable := range env {
		_, _ = fmt.Fprintf(program, " %q %q %q", variable.Name, ptr.Deref(variable.Value, ""),
			ptr.Deref(variable.SecretRef, v1alpha1.SecretKeyRef{}))
	}
	return program.String()
}
