package v1alpha1

// Condition types of both kinds.
const (
	// ConditionReady is True when what was observed equals what was asked: a running session that
	// should run, a stopped one that was suspended or has ended as it should.
	ConditionReady = "Ready"
	// ConditionReconciling is True while the operator, or the cluster on its behalf, is on the way
	// there. It is absent otherwise.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when the operator cannot get there without somebody's help. It is
	// absent otherwise.
	ConditionStalled = "Stalled"
)

// Condition types of Conversation.
const (
	// ConditionPodReady is True when the session's pod is ready.
	ConditionPodReady = "PodReady"
	// ConditionWorkspaceReady is False when the session has scratch space although its class gives
	// a volume; the message names the fix. It is absent otherwise.
	ConditionWorkspaceReady = "WorkspaceReady"
	// ConditionSettingsReady is True when the session's UserSettings exist and all that it needs of
	// them resolves.
	ConditionSettingsReady = "SettingsReady"
)

// Condition types of UserSettings: each True when every reference of its group resolves, absent
// when there is no such reference.
const (
	// ConditionSessionKeyReady is True when the session key exists and its hash is published.
	ConditionSessionKeyReady = "SessionKeyReady"
	// ConditionLLMAPIKeyResolved is about llmAPIKeyRef.
	ConditionLLMAPIKeyResolved = "LLMAPIKeyResolved"
	// ConditionSearchAPIKeyResolved is about searchAPIKeyRef.
	ConditionSearchAPIKeyResolved = "SearchAPIKeyResolved"
	// ConditionSandboxAPIKeyResolved is about sandboxAPIKeyRef.
	ConditionSandboxAPIKeyResolved = "SandboxAPIKeyResolved"
	// ConditionProviderTokensResolved is about secretsStore.providerTokens.
	ConditionProviderTokensResolved = "ProviderTokensResolved"
	// ConditionCustomSecretsResolved is about secretsStore.customSecrets.
	ConditionCustomSecretsResolved = "CustomSecretsResolved"
	// ConditionMCPKeysResolved is about the references in mcpConfig.
	ConditionMCPKeysResolved = "MCPKeysResolved"
)

// Reasons of a STARTING session, in the order in which a start passes through them.
const (
	// ReasonSettingsNotReady: the UserSettings, or something they refer to, is not there yet.
	ReasonSettingsNotReady = "SettingsNotReady"
	// ReasonQueued: the user has as many sessions running as the class allows.
	ReasonQueued = "Queued"
	// ReasonScheduling: the pod has no node yet.
	ReasonScheduling = "Scheduling"
	// ReasonPullingImage: an image of the pod is not there yet.
	ReasonPullingImage = "PullingImage"
	// ReasonPreparingWorkspace: volumes are attached, the runtime is put in.
	ReasonPreparingWorkspace = "PreparingWorkspace"
	// ReasonStartingRuntime: the runtime started; it clones the repository, connects the tools and
	// starts the agent.
	ReasonStartingRuntime = "StartingRuntime"
	// ReasonRestarting: the session was running, its process or pod was lost, and it starts again.
	ReasonRestarting = "Restarting"
)

// ReasonRunning is the reason of a RUNNING session.
const ReasonRunning = "Running"

// Reasons of a STOPPED session.
const (
	// ReasonSuspended: spec.suspend is set.
	ReasonSuspended = "Suspended"
	// ReasonIdle: nothing happened for idleTimeout.
	ReasonIdle = "Idle"
	// ReasonCompleted: the agent is done.
	ReasonCompleted = "Completed"
	// ReasonFailed: the agent or the session failed; the message says how.
	ReasonFailed = "Failed"
	// ReasonLost: the session's pod is gone, and with it its workspace, after it ran. What it was
	// asked to do may be done, half done or not done, so it is not begun again unless somebody asks
	// for that.
	ReasonLost = "Lost"
	// ReasonMaxDuration: the session ran for maxDuration.
	ReasonMaxDuration = "MaxDuration"
	// ReasonStartDeadlineExceeded: the start took longer than startDeadline; the message names the
	// step.
	ReasonStartDeadlineExceeded = "StartDeadlineExceeded"
	// ReasonSettingsMissing: the settings did not become ready within startDeadline. When they do,
	// the session starts.
	ReasonSettingsMissing = "SettingsMissing"
	// ReasonDeleted: the Conversation is being deleted.
	ReasonDeleted = "Deleted"
)

// Reasons of conditions.
const (
	// ReasonNoPod: the session has no pod.
	ReasonNoPod = "NoPod"
	// ReasonClassNotFound: the SessionClass that is named does not exist.
	ReasonClassNotFound = "ClassNotFound"
	// ReasonNotAllowed: the SessionClass does not allow what is asked for; the message names the
	// field.
	ReasonNotAllowed = "NotAllowed"
	// ReasonNoStorageClass: the cluster has no default StorageClass to make the class's volume of.
	ReasonNoStorageClass = "NoStorageClass"
	// ReasonForeignObject: an object that is not the operator's has the name of one that it needs.
	ReasonForeignObject = "ForeignObject"
	// ReasonRejected: the API server refuses an object the session needs; the message says why.
	ReasonRejected = "Rejected"
	// ReasonResolved: every reference resolves.
	ReasonResolved = "Resolved"
	// ReasonSecretNotFound: a Secret that is referred to does not exist.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonKeyNotFound: a Secret that is referred to lacks the key, or the key is empty.
	ReasonKeyNotFound = "KeyNotFound"
	// ReasonKeyTooShort: a session key is so short that it could be guessed.
	ReasonKeyTooShort = "KeyTooShort"
	// ReasonKeyUnfit: a key is too long for a session, or not text.
	ReasonKeyUnfit = "KeyUnfit"
	// ReasonModelsInvalid: the prices of models have a mistake, and there is a budget to keep.
	ReasonModelsInvalid = "ModelsInvalid"
	// ReasonConfigMapNotFound: a ConfigMap, or its key, that is referred to does not exist.
	ReasonConfigMapNotFound = "ConfigMapNotFound"
	// ReasonAgentNotFound: the agent that the settings name is not in the catalogue, or its entry
	// is not valid.
	ReasonAgentNotFound = "AgentNotFound"
	// ReasonSigningKeyUnfit: the key that the facade's tokens are signed with is not one.
	ReasonSigningKeyUnfit = "SigningKeyUnfit"
	// ReasonSettingsDeleted: the UserSettings are gone; the session keeps those it started with.
	ReasonSettingsDeleted = "SettingsDeleted"
	// ReasonReady: all is as asked.
	ReasonReady = "Ready"
)
