package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// UserSettingsSpec holds a user's settings for agent sessions.
// +kubebuilder:validation:XValidation:rule="!has(self.inheritFrom) || !has(self.sandboxBaseContainerImage)",message="must be absent when inheritFrom is set: an image could divert inherited keys",fieldPath=".sandboxBaseContainerImage"
// +kubebuilder:validation:XValidation:rule="!has(self.inheritFrom) || !has(self.sandboxRuntimeContainerImage)",message="must be absent when inheritFrom is set: an image could read inherited keys",fieldPath=".sandboxRuntimeContainerImage"
type UserSettingsSpec struct {
	// Language of the user interface and of the agent's messages, as a language tag such as en or
	// zh-CN.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Language *string `json:"language,omitempty"`

	// Agent to run: the name of an entry in the operator's agent catalogue.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Agent *string `json:"agent,omitempty"`

	// MaxIterations limits the model calls of one turn. Default: 500.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000000
	MaxIterations *int32 `json:"maxIterations,omitempty"`

	// SecurityAnalyzer names the analyzer that rates the agent's actions before they run.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	SecurityAnalyzer *string `json:"securityAnalyzer,omitempty"`

	// ConfirmationMode makes the agent ask before each action.
	ConfirmationMode *bool `json:"confirmationMode,omitempty"`

	// ExposeSecretsToModel lets the model read custom secrets and the repository's token in the
	// results of tools. Default: these secrets are masked as ***.
	ExposeSecretsToModel *bool `json:"exposeSecretsToModel,omitempty"`

	// ExposeGitTokenToAgent gives the agent the repository's token as an environment variable, such
	// as GITHUB_TOKEN. Git itself does not need the variable. Default: only the runtime has the
	// token, and adds the token to git's requests.
	ExposeGitTokenToAgent *bool `json:"exposeGitTokenToAgent,omitempty"`

	// LLMModel is the model of the agent, as provider/model. The provider may be omitted if there is a
	// base URL, or if only one provider serves the model, such as claude-… or gpt-5.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	LLMModel *string `json:"llmModel,omitempty"`

	// LLMAPIKeyRef refers to the API key of the model.
	LLMAPIKeyRef *SecretKeyRef `json:"llmAPIKeyRef,omitempty"`

	// LLMBaseURL is the base URL of the model's API, http or https. Default: the public API of the
	// provider.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	LLMBaseURL *string `json:"llmBaseURL,omitempty"`

	// LLMReasoningEffort is how much the model reasons before it answers. Default: the effort of the
	// model in the ConfigMap parley-models, or else the provider's default.
	// +kubebuilder:validation:Enum=none;minimal;low;medium;high;xhigh
	LLMReasoningEffort *string `json:"llmReasoningEffort,omitempty"`

	// LLMTemperature is the sampling temperature of the model, a decimal from "0" to "2". Default: the
	// temperature of the model in the ConfigMap parley-models, or else the provider's default.
	// +kubebuilder:validation:MaxLength=8
	// +kubebuilder:validation:Pattern=`^(2(\.0{1,6})?|[01](\.[0-9]{1,6})?)$`
	LLMTemperature *string `json:"llmTemperature,omitempty"`

	// RemoteRuntimeResourceFactor multiplies the resource requests and limits of the class: 1, 2, 4
	// or 8.
	// +kubebuilder:validation:Enum=1;2;4;8
	RemoteRuntimeResourceFactor *int32 `json:"remoteRuntimeResourceFactor,omitempty"`

	// SecretsStore refers to the tokens of git providers and the user's custom secrets.
	SecretsStore *SecretsStore `json:"secretsStore,omitempty"`

	// EnableDefaultCondenser makes the agent summarise a history that is too long for the model.
	// +kubebuilder:default=true
	EnableDefaultCondenser *bool `json:"enableDefaultCondenser,omitempty"`

	// EnableSoundNotifications plays a sound when the agent waits or has finished.
	// +kubebuilder:default=false
	EnableSoundNotifications *bool `json:"enableSoundNotifications,omitempty"`

	// EnableProactiveConversationStarters lets OpenHands clients suggest tasks. Parley ignores this
	// field.
	// +kubebuilder:default=true
	EnableProactiveConversationStarters *bool `json:"enableProactiveConversationStarters,omitempty"`

	// EnableSolvabilityAnalysis makes the agent study a suggested task first, and say whether it can
	// solve the task.
	// +kubebuilder:default=true
	EnableSolvabilityAnalysis *bool `json:"enableSolvabilityAnalysis,omitempty"`

	// UserConsentsToAnalytics adds the model tokens and the costs of the user's sessions to the
	// operator's metrics. Absent means that the user has not answered yet.
	UserConsentsToAnalytics *bool `json:"userConsentsToAnalytics,omitempty"`

	// SandboxBaseContainerImage is the image of the user's sessions. Parley adds its runtime to the
	// pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	SandboxBaseContainerImage *string `json:"sandboxBaseContainerImage,omitempty"`

	// SandboxRuntimeContainerImage is an image whose own entry point replaces Parley's runtime. It
	// takes precedence over sandboxBaseContainerImage.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	SandboxRuntimeContainerImage *string `json:"sandboxRuntimeContainerImage,omitempty"`

	// MCPConfig lists the tool servers of the user's sessions. The field mcpConfig of a Conversation
	// replaces this list.
	MCPConfig *MCPConfig `json:"mcpConfig,omitempty"`

	// SearchAPIKeyRef refers to the API key of the web search service.
	SearchAPIKeyRef *SecretKeyRef `json:"searchAPIKeyRef,omitempty"`

	// SandboxAPIKeyRef refers to a key for images with their own entry point. Parley itself does not
	// use the key.
	SandboxAPIKeyRef *SecretKeyRef `json:"sandboxAPIKeyRef,omitempty"`

	// MaxBudgetPerTask limits the cost of one turn, in US dollars, as a decimal such as "4.50".
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]{1,9}(\.[0-9]{1,6})?$`
	MaxBudgetPerTask *string `json:"maxBudgetPerTask,omitempty"`

	// Email address of the user.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=320
	Email *string `json:"email,omitempty"`

	// EmailVerified is true if the user has confirmed the address.
	EmailVerified *bool `json:"emailVerified,omitempty"`

	// GitUserName is the author name of commits made in sessions.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^<>\r\n\x00]+$`
	GitUserName *string `json:"gitUserName,omitempty"`

	// GitUserEmail is the author address of commits made in sessions.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=320
	GitUserEmail *string `json:"gitUserEmail,omitempty"`

	// SessionClassName names the SessionClass of Conversations that name no class. Default: the class
	// named default.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	SessionClassName *string `json:"sessionClassName,omitempty"`

	// SessionKeyRef refers to the key with which the user's HTTP clients authenticate. Default: the
	// operator creates a key in the Secret <name>-session-key; delete that Secret to rotate the key.
	SessionKeyRef *SecretKeyRef `json:"sessionKeyRef,omitempty"`

	// Owner is the person who may act through these settings over HTTP, after signing in.
	Owner *SettingsOwner `json:"owner,omitempty"`

	// InheritFrom names other UserSettings in the same namespace. Fields that are absent here get the
	// values of the other UserSettings. The other UserSettings must have no inheritFrom. If llmModel,
	// llmBaseURL or llmAPIKeyRef is set here, none of these three fields is inherited, so that an
	// inherited API key is sent only to the address that belongs to the key. Container images always
	// come from the other UserSettings, and must not be set here. These settings are never inherited:
	// owner, sessionClassName, sessionKeyRef, custom secrets, stdio tool servers with secret
	// variables, the email address, the author of commits, exposeSecretsToModel, and fields with a
	// default.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	InheritFrom *string `json:"inheritFrom,omitempty"`
}

// SettingsOwner names the owner of UserSettings.
// +kubebuilder:validation:XValidation:rule="!self.username.startsWith('system:') || self.username.matches('^system:serviceaccount:[^:]+:[^:]+$')",message="must not begin with system:, unless it is a ServiceAccount",fieldPath=".username"
type SettingsOwner struct {
	// Username of a person, including the prefix of the OpenID provider (oidc:ada@example.com), or
	// of a ServiceAccount (system:serviceaccount:team-a:pipeline).
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Username string `json:"username"`

	// Group that the person must be in to use these settings, with the prefix of the OpenID provider,
	// such as oidc:team-a. Default: the person needs no group.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('system:')",message="must not begin with system:"
	Group *string `json:"group,omitempty"`
}

// SecretsStore refers to the user's tokens and custom secrets.
type SecretsStore struct {
	// ProviderTokens are tokens for git providers, one for each provider. A session gets only the
	// token of its repository's provider.
	// +kubebuilder:validation:MaxItems=4
	// +listType=map
	// +listMapKey=provider
	ProviderTokens []ProviderToken `json:"providerTokens,omitempty"`

	// CustomSecrets become environment variables of the agent. Their values are secret.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	CustomSecrets []CustomSecret `json:"customSecrets,omitempty"`
}

// ProviderToken is the user's token for one git provider.
type ProviderToken struct {
	// Provider that issued the token.
	Provider GitProvider `json:"provider"`

	// TokenRef refers to the token.
	TokenRef *SecretKeyRef `json:"tokenRef,omitempty"`

	// UserID of the user at the provider.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	UserID *string `json:"userID,omitempty"`

	// Host of the provider, such as git.example.com. Default: the provider's public host.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=261
	Host *string `json:"host,omitempty"`
}

// CustomSecret is a secret of the user for the agent's environment.
type CustomSecret struct {
	// Name of the environment variable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`

	// SecretRef refers to the value.
	SecretRef SecretKeyRef `json:"secretRef"`

	// Description of the secret.
	// +kubebuilder:validation:MaxLength=1024
	Description *string `json:"description,omitempty"`
}

// UserSettingsStatus is the observed state of UserSettings.
type UserSettingsStatus struct {
	// ObservedGeneration of the spec that this status describes.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// SessionKeyHash is the SHA-256 of the session key in hexadecimal. The key itself is only in
	// its Secret.
	// +kubebuilder:validation:MaxLength=64
	SessionKeyHash string `json:"sessionKeyHash,omitempty"`

	// SessionKeyRef refers to the session key.
	SessionKeyRef *SecretKeyRef `json:"sessionKeyRef,omitempty"`

	// Conditions: Ready, Stalled, SessionKeyReady, and one condition for each kind of reference, such
	// as LLMAPIKeyResolved.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// UserSettings are a user's settings for agent sessions.
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=usersettings,singular=usersettings,shortName=uset,categories=parley
// +kubebuilder:selectablefield:JSONPath=`.spec.owner.username`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Model",type=string,JSONPath=`.spec.llmModel`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Agent",type=string,priority=1,JSONPath=`.spec.agent`
// +kubebuilder:printcolumn:name="Email",type=string,priority=1,JSONPath=`.spec.email`
// +kubebuilder:printcolumn:name="Owner",type=string,priority=1,JSONPath=`.spec.owner.username`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$')",message="metadata.name must be a DNS label of at most 53 characters: lower-case letters, digits and -"
// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.inheritFrom) || self.spec.inheritFrom != self.metadata.name",message="must name other UserSettings",fieldPath=".spec.inheritFrom"
type UserSettings struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec holds the user's settings.
	// +kubebuilder:default={}
	Spec UserSettingsSpec `json:"spec,omitempty"`

	// Status is the observed state of the settings.
	// +kubebuilder:default:={"observedGeneration":-1}
	Status UserSettingsStatus `json:"status,omitempty"`
}

// UserSettingsList is a list of UserSettings.
// +kubebuilder:object:root=true
type UserSettingsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []UserSettings `json:"items"`
}

// OwnerName returns the username of the owner, or an empty text.
func (u *UserSettings) OwnerName() string {
	if u.Spec.Owner == nil {
		return ""
	}
	return u.Spec.Owner.Username
}
