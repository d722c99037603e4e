package v1alpha1

// Condition types of Conversation and UserSettings.
const (
	// ConditionReady is True when the observed state is the desired state: a session that should run
	// is running, or a session that was suspended or ended normally is stopped.
	ConditionReady = "Ready"
	// ConditionReconciling is True while the operator or the cluster makes progress towards the
	// desired state. It is absent otherwise.
	ConditionReconciling = "Reconciling"
	// ConditionStalled is True when the operator makes no progress until a user acts. It is absent
	// otherwise.
	ConditionStalled = "Stalled"
)

// Condition types of Conversation.
const (
	// ConditionPodReady is True when the session's pod is ready.
	ConditionPodReady = "PodReady"
	// ConditionWorkspaceReady is False when the session has scratch space although its class provides
	// a volume, or although the session had a volume before. The message names the cause. The
	// condition is absent otherwise.
	ConditionWorkspaceReady = "WorkspaceReady"
	// ConditionSettingsReady is True when the session's UserSettings and all referenced objects exist.
	ConditionSettingsReady = "SettingsReady"
)

// Condition types of UserSettings. A condition that covers references is True when every referenced
// Secret exists and has the named key. It is absent when there are no such references.
const (
	// ConditionSessionKeyReady is True when the session key exists and its hash is published.
	ConditionSessionKeyReady = "SessionKeyReady"
	// ConditionLLMAPIKeyResolved covers llmAPIKeyRef.
	ConditionLLMAPIKeyResolved = "LLMAPIKeyResolved"
	// ConditionSearchAPIKeyResolved covers searchAPIKeyRef.
	ConditionSearchAPIKeyResolved = "SearchAPIKeyResolved"
	// ConditionSandboxAPIKeyResolved covers sandboxAPIKeyRef.
	ConditionSandboxAPIKeyResolved = "SandboxAPIKeyResolved"
	// ConditionProviderTokensResolved covers secretsStore.providerTokens.
	ConditionProviderTokensResolved = "ProviderTokensResolved"
	// ConditionCustomSecretsResolved covers secretsStore.customSecrets.
	ConditionCustomSecretsResolved = "CustomSecretsResolved"
	// ConditionMCPKeysResolved covers the references in mcpConfig.
	ConditionMCPKeysResolved = "MCPKeysResolved"
	// ConditionInheritFromResolved is True when the UserSettings in inheritFrom exist and have no
	// inheritFrom of their own.
	ConditionInheritFromResolved = "InheritFromResolved"
)

// Reasons of a STARTING session, in the order in which a start passes through them.
const (
	// ReasonSettingsNotReady means that the UserSettings or a referenced object do not exist yet.
	ReasonSettingsNotReady = "SettingsNotReady"
	// ReasonQueued means that the user already runs as many sessions as the class allows.
	ReasonQueued = "Queued"
	// ReasonScheduling means that the pod has no node yet.
	ReasonScheduling = "Scheduling"
	// ReasonPullingImage means that an image of the pod is not on the node yet.
	ReasonPullingImage = "PullingImage"
	// ReasonPreparingWorkspace means that the node attaches the volumes, or copies the runtime into
	// the pod.
	ReasonPreparingWorkspace = "PreparingWorkspace"
	// ReasonStartingRuntime means that the runtime clones the repository and connects the tools.
	ReasonStartingRuntime = "StartingRuntime"
	// ReasonRestarting means that a session lost its process or its pod, or no longer answers.
	ReasonRestarting = "Restarting"
	// ReasonBackingOff means that several pods in a row were lost. The next pod is created at
	// status.retryTime.
	ReasonBackingOff = "BackingOff"
)

// ReasonRunning is the reason of a RUNNING session.
const ReasonRunning = "Running"

// Reasons of a STOPPED session.
const (
	// ReasonSuspended means that spec.suspend is set.
	ReasonSuspended = "Suspended"
	// ReasonIdle means that there was no activity for idleTimeout.
	ReasonIdle = "Idle"
	// ReasonCompleted means that the agent has finished.
	ReasonCompleted = "Completed"
	// ReasonFailed means that the agent or the session failed; the message says how.
	ReasonFailed = "Failed"
	// ReasonLost means that the pod of a session without a volume was lost after the session began
	// its task. The task may be partly done, so the session restarts only if a user restarts it.
	ReasonLost = "Lost"
	// ReasonMaxDuration means that the session ran for maxDuration.
	ReasonMaxDuration = "MaxDuration"
	// ReasonStartDeadlineExceeded means that the start took longer than startDeadline; the message
	// names the step.
	ReasonStartDeadlineExceeded = "StartDeadlineExceeded"
	// ReasonSettingsMissing means that the session stopped because the settings did not become ready
	// within startDeadline. If they become ready later, the session starts.
	ReasonSettingsMissing = "SettingsMissing"
	// ReasonSettingsDeleted means that the UserSettings were deleted or got another owner, which ended
	// the session. It is also the reason of the condition SettingsReady while the UserSettings do not exist.
	ReasonSettingsDeleted = "SettingsDeleted"
	// ReasonDeleted means that the Conversation is being deleted.
	ReasonDeleted = "Deleted"
)

// Reasons of conditions.
const (
	// ReasonNoPod means that the session has no pod.
	ReasonNoPod = "NoPod"
	// ReasonClassNotFound means that the named SessionClass does not exist.
	ReasonClassNotFound = "ClassNotFound"
	// ReasonNotAllowed means that the SessionClass does not allow the value of a field; the message
	// names the field.
	ReasonNotAllowed = "NotAllowed"
	// ReasonNoStorageClass means that the class's volume needs a default StorageClass, and there is
	// none.
	ReasonNoStorageClass = "NoStorageClass"
	// ReasonVolumeDeleted means that the volume of an earlier attempt was deleted and that the class
	// provides no volume.
	ReasonVolumeDeleted = "VolumeDeleted"
	// ReasonForeignObject means that an object of another owner has a name that the operator needs.
	ReasonForeignObject = "ForeignObject"
	// ReasonRejected means that the API server rejects an object of the session; the message says why.
	ReasonRejected = "Rejected"
	// ReasonResolved means that every referenced object exists.
	ReasonResolved = "Resolved"
	// ReasonSecretNotFound means that a referenced Secret does not exist.
	ReasonSecretNotFound = "SecretNotFound"
	// ReasonKeyNotFound means that a referenced Secret lacks the key, or the key is empty.
	ReasonKeyNotFound = "KeyNotFound"
	// ReasonKeyTooShort means that a session key is short enough to guess.
	ReasonKeyTooShort = "KeyTooShort"
	// ReasonKeyUnfit means that a key is too long for a session, or is not text.
	ReasonKeyUnfit = "KeyUnfit"
	// ReasonSettingsNotFound means that the UserSettings in inheritFrom do not exist.
	ReasonSettingsNotFound = "SettingsNotFound"
	// ReasonInheritsTwice means that the UserSettings in inheritFrom have an inheritFrom too.
	ReasonInheritsTwice = "InheritsTwice"
	// ReasonModelsInvalid means that an entry of parley-models is invalid, and that the session has a
	// budget or a spending limit.
	ReasonModelsInvalid = "ModelsInvalid"
	// ReasonConfigMapNotFound means that a referenced ConfigMap, or its key, does not exist.
	ReasonConfigMapNotFound = "ConfigMapNotFound"
	// ReasonAgentNotFound means that the agent of the session is not in the catalogue, or its entry
	// is invalid.
	ReasonAgentNotFound = "AgentNotFound"
	// ReasonSigningKeyUnfit means that the signing key of the facade's tokens is invalid.
	ReasonSigningKeyUnfit = "SigningKeyUnfit"
	// ReasonReady means that the object is in its desired state.
	ReasonReady = "Ready"
)
