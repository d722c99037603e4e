package webhook

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// findings are the results of the checks of one object: errors refuse it, warnings do not.
type findings struct {
	errs     field.ErrorList
	warnings admission.Warnings
}

func (f *findings) forbid(path *field.Path, format string, args ...any) {
	f.errs = append(f.errs, field.Forbidden(path, fmt.Sprintf(format, args...)))
}

func (f *findings) warn(path *field.Path, format string, args ...any) {
	f.warnings = append(f.warnings, path.String()+": "+fmt.Sprintf(format, args...))
}

func (f *findings) check(path *field.Path, value *string, problem func(string) string) {
	if value != nil && problem(*value) != "" {
		f.errs = append(f.errs, invalid(path, problem(*value)))
	}
}

// invalid omits the value, because it may be a secret that the user put into the wrong field.
func invalid(path *field.Path, problem string) *field.Error {
	return field.Invalid(path, field.OmitValueType{}, problem)
}

func (f *findings) checkUserSettings(spec *v1alpha1.UserSettingsSpec) {
	path := field.NewPath("spec")
	f.check(path.Child("language"), spec.Language, languageProblem)
	f.check(path.Child("llmBaseURL"), spec.LLMBaseURL, llmURL.problem)
	f.check(path.Child("sandboxBaseContainerImage"), spec.SandboxBaseContainerImage, imageReferenceProblem)
	f.check(path.Child("sandboxRuntimeContainerImage"), spec.SandboxRuntimeContainerImage, imageReferenceProblem)
	f.check(path.Child("email"), spec.Email, emailProblem)
	f.check(path.Child("gitUserEmail"), spec.GitUserEmail, emailProblem)
	if store := spec.SecretsStore; store != nil {
		for i, token := range store.ProviderTokens {
			f.check(path.Child("secretsStore", "providerTokens").Index(i).Child("host"), token.Host, hostProblem)
		}
	}
	f.checkMCP(path.Child("mcpConfig"), spec.MCPConfig)
}

func (f *findings) checkConversation(spec *v1alpha1.ConversationSpec) {
	path := field.NewPath("spec")
	f.check(path.Child("repository"), spec.Repository, repositoryProblem)
	f.check(path.Child("selectedBranch"), spec.SelectedBranch, branchProblem)
	for i := range spec.ImageURLs {
		f.check(path.Child("imageURLs").Index(i), &spec.ImageURLs[i], imageURLProblem)
	}
	for i, image := range spec.Images {
		f.check(path.Child("images").Index(i).Child("url"), image.URL, imageURLProblem)
	}
	if task := spec.SuggestedTask; task != nil {
		f.check(path.Child("suggestedTask", "repo"), &task.Repo, repositoryProblem)
	}
	if microagent := spec.CreateMicroagent; microagent != nil {
		f.check(path.Child("createMicroagent", "repo"), &microagent.Repo, repositoryProblem)
	}
	f.checkMCP(path.Child("mcpConfig"), spec.MCPConfig)
	f.errs = append(f.errs, ruleErrors(spec)...)
}

func (f *findings) checkMCP(path *field.Path, config *v1alpha1.MCPConfig) {
	if config == nil {
		return
	}
	for i, server := range config.SSEServers {
		f.check(path.Child("sseServers").Index(i).Child("url"), &server.URL, mcpURL.problem)
	}
	guessed := maxGuessed
	for i, server := range config.StdioServers {
		guessed = f.warnOfLiteralKeys(path.Child("stdioServers").Index(i), server, guessed)
	}
	for i, server := range config.SHTTPServers {
		f.check(path.Child("shttpServers").Index(i).Child("url"), &server.URL, mcpURL.problem)
	}
}
