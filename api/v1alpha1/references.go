package v1alpha1

// SecretKeyRef names one key of a Secret in the same namespace. Specs contain only such references,
// never values of secrets.
type SecretKeyRef struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// Key in the Secret's data that holds the value.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key"`
}

// ConfigMapKeyRef names one key of a ConfigMap in the same namespace.
type ConfigMapKeyRef struct {
	// Name of the ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// Key in the ConfigMap's data.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key"`
}

// GitProvider is a host of git repositories.
// +kubebuilder:validation:Enum=github;gitlab;bitbucket;enterprise_sso
type GitProvider string

// The providers of repositories.
const (
	GitHub        GitProvider = "github"
	GitLab        GitProvider = "gitlab"
	Bitbucket     GitProvider = "bitbucket"
	EnterpriseSSO GitProvider = "enterprise_sso"
)
