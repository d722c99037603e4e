package v1alpha1

// MCPConfig lists tool servers that speak the Model Context Protocol. The runtime serves the tools
// of all servers at one endpoint.
// +kubebuilder:validation:XValidation:rule="!has(self.sseServers) || !has(self.shttpServers) || self.sseServers.all(s, !self.shttpServers.exists(h, h.url == s.url))",message="shttpServers must not repeat a url of sseServers: list each server once",fieldPath=".shttpServers"
type MCPConfig struct {
	// SSEServers are tool servers reached over server-sent events. Each URL at most once.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=url
	SSEServers []MCPRemoteServer `json:"sseServers,omitempty"`

	// StdioServers are tool servers that the runtime starts as processes in the session. They speak
	// MCP over standard input and output. Each name at most once.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	StdioServers []MCPStdioServer `json:"stdioServers,omitempty"`

	// SHTTPServers are tool servers reached over streamable HTTP. Each URL at most once.
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=url
	SHTTPServers []MCPRemoteServer `json:"shttpServers,omitempty"`
}

// MCPRemoteServer is a tool server that runs outside the session.
type MCPRemoteServer struct {
	// URL of the server: http, https, ws or wss.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	URL string `json:"url"`

	// APIKeyRef refers to the API key, which is sent as a bearer token.
	APIKeyRef *SecretKeyRef `json:"apiKeyRef,omitempty"`
}

// MCPStdioServer is a tool server started as a process in the session.
type MCPStdioServer struct {
	// Name of the server: letters, digits, _ and -. The server's tools are named <name>_<tool>.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9_-]+$`
	Name string `json:"name"`

	// Command to run: one program, no spaces. Arguments belong in args.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^\S+$`
	Command string `json:"command"`

	// Args of the command, each as one argument. Put keys into env, because everybody who may read
	// the object can read args. Text that looks like a key causes a warning.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	Args []string `json:"args,omitempty"`

	// Env lists environment variables of the process, in addition to the variables of the session.
	// Each name at most once.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Env []MCPEnvVar `json:"env,omitempty"`
}

// MCPEnvVar is one environment variable of a tool server: a plain value, or a reference to a secret
// value.
// +kubebuilder:validation:ExactlyOneOf=value;secretRef
type MCPEnvVar struct {
	// Name of the variable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`

	// Value of the variable. Everybody who may read the object can read this value, so use secretRef
	// for secrets. A value that looks like a key causes a warning.
	// +kubebuilder:validation:MaxLength=4096
	Value *string `json:"value,omitempty"`

	// SecretRef refers to a secret value.
	SecretRef *SecretKeyRef `json:"secretRef,omitempty"`
}
