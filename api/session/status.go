package session

// Status is the status of a running session.
type Status struct {
	Conversation string          `json:"conversation"`
	Namespace    string          `json:"namespace"`
	Ready        bool            `json:"ready"`
	Workspace    WorkspaceStatus `json:"workspace"`
	ToolServers  []ToolServer    `json:"toolServers"`
	Agent        AgentStatus     `json:"agent"`
	// IdleSeconds is the time since the last activity.
	IdleSeconds int64 `json:"idleSeconds"`
	// IdleTimeoutSeconds is the idle time after which the session ends; zero means never.
	IdleTimeoutSeconds int64 `json:"idleTimeoutSeconds"`
}

// WorkspaceState says whether the workspace is prepared.
type WorkspaceState string

// The states of a workspace.
const (
	WorkspacePreparing WorkspaceState = "Preparing"
	WorkspacePrepared  WorkspaceState = "Prepared"
)

// WorkspaceStatus describes the workspace.
type WorkspaceStatus struct {
	State      WorkspaceState `json:"state"`
	Directory  string         `json:"directory"`
	Repository string         `json:"repository,omitempty"`
	// Branch and Commit were checked out at the start of the session.
	Branch string `json:"branch,omitempty"`
	Commit string `json:"commit,omitempty"`
	// Resumed is set if the workspace already contained the clone.
	Resumed bool `json:"resumed,omitempty"`
}

// ToolServerState is the health of a tool server.
type ToolServerState string

// The states of a tool server.
const (
	ToolServerConnecting ToolServerState = "Connecting"
	ToolServerConnected  ToolServerState = "Connected"
	// ToolServerFailed means that the server cannot be reached or has ended; it is retried.
	ToolServerFailed ToolServerState = "Failed"
)

// ToolServer is the health of one tool server.
type ToolServer struct {
	// Name is the prefix of the server's tools.
	Name string `json:"name"`
	// Kind is stdio, sse or shttp.
	Kind  string          `json:"kind"`
	State ToolServerState `json:"state"`
	// Error is the reason why the server is not connected, or its last error.
	Error string `json:"error,omitempty"`
	// Restarts is how often the server was restarted or reconnected in this session.
	Restarts  int `json:"restarts"`
	Tools     int `json:"tools"`
	Prompts   int `json:"prompts"`
	Resources int `json:"resources"`
}

// AgentState is the state of the agent's process.
type AgentState string

// The states of an agent.
const (
	// AgentNone means that there is no agent, or that the agent has no command.
	AgentNone    AgentState = "None"
	AgentWaiting AgentState = "Waiting"
	AgentRunning AgentState = "Running"
	AgentEnded   AgentState = "Ended"
)

// AgentStatus is the status of the agent.
type AgentStatus struct {
	Name  string     `json:"name,omitempty"`
	State AgentState `json:"state"`
	// Reported is the agent's state as OpenHands clients know it.
	Reported State `json:"reported,omitempty"`
}
