package session

// Status is what a session says of itself while it runs.
type Status struct {
	Conversation string          `json:"conversation"`
	Namespace    string          `json:"namespace"`
	Ready        bool            `json:"ready"`
	Workspace    WorkspaceStatus `json:"workspace"`
	ToolServers  []ToolServer    `json:"toolServers"`
	Agent        AgentStatus     `json:"agent"`
	// IdleSeconds since an agent ran or a tool was asked for.
	IdleSeconds int64 `json:"idleSeconds"`
	// IdleTimeoutSeconds after which the session ends; zero means never.
	IdleTimeoutSeconds int64 `json:"idleTimeoutSeconds"`
}

// WorkspaceState says how far the workspace is.
type WorkspaceState string

// The states of a workspace.
const (
	WorkspacePreparing WorkspaceState = "Preparing"
	WorkspacePrepared  WorkspaceState = "Prepared"
)

// WorkspaceStatus is where the session works.
type WorkspaceStatus struct {
	State      WorkspaceState `json:"state"`
	Directory  string         `json:"directory"`
	Repository string         `json:"repository,omitempty"`
	// Branch and Commit that were checked out when the session started.
	Branch string `json:"branch,omitempty"`
	Commit string `json:"commit,omitempty"`
	// Resumed is set when the repository was there already.
	Resumed bool `json:"resumed,omitempty"`
}

// ToolServerState is the health of a tool server.
type ToolServerState string

// The states of a tool server.
const (
	ToolServerConnecting ToolServerState = "Connecting"
	ToolServerConnected  ToolServerState = "Connected"
	// ToolServerFailed: it cannot be reached, or it ended; it is tried again.
	ToolServerFailed ToolServerState = "Failed"
)

// ToolServer is the health of one tool server.
type ToolServer struct {
	// Name is what stands before the names of its tools.
	Name string `json:"name"`
	// Kind is stdio, sse or shttp.
	Kind  string          `json:"kind"`
	State ToolServerState `json:"state"`
	// Error is why it is not connected, or what last went wrong.
	Error string `json:"error,omitempty"`
	// Restarts since the session started.
	Restarts  int `json:"restarts"`
	Tools     int `json:"tools"`
	Prompts   int `json:"prompts"`
	Resources int `json:"resources"`
}

// AgentState says what the agent does.
type AgentState string

// The states of an agent.
const (
	// AgentNone: there is no agent, or nothing for it to do.
	AgentNone    AgentState = "None"
	AgentWaiting AgentState = "Waiting"
	AgentRunning AgentState = "Running"
	AgentEnded   AgentState = "Ended"
)

// AgentStatus is what the agent does.
type AgentStatus struct {
	Name  string     `json:"name,omitempty"`
	State AgentState `json:"state"`
	// Reported is the state as clients know it.
	Reported State `json:"reported,omitempty"`
}
