package webhook

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// invalid never repeats the value: it may be, or hold, a secret that was put into the wrong field.
func invalid(path *field.Path, problem string) *field.Error {
	return field.Invalid(path, field.OmitValueType{}, problem)
}

// fieldErrors collects what is wrong with the fields of one object.
type fieldErrors field.ErrorList

func (e *fieldErrors) check(path *field.Path, value string, problem func(string) string) {
	if problem := problem(value); problem != "" {
		*e = append(*e, invalid(path, problem))
	}
}

func (e *fieldErrors) checkOptional(path *field.Path, value *string, problem func(string) string) {
	if value != nil {
		e.check(path, *value, problem)
	}
}

func (e *fieldErrors) checkMCP(path *field.Path, config *v1alpha1.MCPConfig) {
	if config == nil {
		return
	}
	for i, server := range config.SSEServers {
		e.check(path.Child("sseServers").Index(i).Child("url"), server.URL, mcpURL.problem)
	}
	for i, server := range config.SHTTPServers {
		e.check(path.Child("shttpServers").Index(i).Child("url"), server.URL, mcpURL.problem)
	}
}

func userSettingsErrors(settings *v1alpha1.UserSettings) field.ErrorList {
	spec, path := &settings.Spec, field.NewPath("spec")
	var errs fieldErrors
	errs.checkOptional(path.Child("language"), spec.Language, languageProblem)
	errs.checkOptional(path.Child("llmBaseURL"), spec.LLMBaseURL, llmURL.problem)
	errs.checkOptional(path.Child("sandboxBaseContainerImage"), spec.SandboxBaseContainerImage, imageReferenceProblem)
	errs.checkOptional(path.Child("sandboxRuntimeContainerImage"), spec.SandboxRuntimeContainerImage,
		imageReferenceProblem)
	errs.checkOptional(path.Child("email"), spec.Email, emailProblem)
	errs.checkOptional(path.Child("gitUserEmail"), spec.GitUserEmail, emailProblem)
	if store := spec.SecretsStore; store != nil {
		tokens := path.Child("secretsStore", "providerTokens")
		for i, token := range store.ProviderTokens {
			errs.checkOptional(tokens.Index(i).Child("host"), token.Host, hostProblem)
		}
	}
	errs.checkMCP(path.Child("mcpConfig"), spec.MCPConfig)
	return field.ErrorList(errs)
}

func conversationErrors(conversation *v1alpha1.Conversation) field.ErrorList {
	spec, path := &conversation.Spec, field.NewPath("spec")
	var errs fieldErrors
	errs.checkOptional(path.Child("repository"), spec.Repository, repositoryProblem)
	errs.checkOptional(path.Child("selectedBranch"), spec.SelectedBranch, branchProblem)
	for i, url := range spec.ImageURLs {
		errs.check(path.Child("imageURLs").Index(i), url, imageURLProblem)
	}
	for i, image := range spec.Images {
		errs.checkOptional(path.Child("images").Index(i).Child("url"), image.URL, imageURLProblem)
	}
	if task := spec.SuggestedTask; task != nil {
		errs.check(path.Child("suggestedTask", "repo"), task.Repo, repositoryProblem)
	}
	if microagent := spec.CreateMicroagent; microagent != nil {
		errs.check(path.Child("createMicroagent", "repo"), microagent.Repo, repositoryProblem)
	}
	errs.checkMCP(path.Child("mcpConfig"), spec.MCPConfig)
	return field.ErrorList(errs)
}
