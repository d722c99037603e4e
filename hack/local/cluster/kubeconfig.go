package cluster

import (
	"errors"
	"os"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Connect writes a kubeconfig with admin rights and opens a client that uses it.
func (c *ControlPlane) Connect(path, context string) (*rest.Config, client.WithWatch, error) {
	if err := c.WriteCertKubeconfig(path, adminCert, context); err != nil {
		return nil, nil, err
	}
	return Open(path)
}

// Open opens a client that uses a kubeconfig.
func Open(kubeconfig string) (*rest.Config, client.WithWatch, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	config.QPS = -1 // no rate limit, because this API server has few clients
	config.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientscheme.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme),
		v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	opened, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	return config, opened, err
}

// WriteTokenKubeconfig writes a kubeconfig that names a token file, relative to the kubeconfig.
// Clients reread the token file regularly.
func (c *ControlPlane) WriteTokenKubeconfig(path, tokenFile, context string) error {
	return c.writeKubeconfig(path, context, &clientcmdapi.AuthInfo{TokenFile: tokenFile})
}

// WriteCertKubeconfig writes a kubeconfig that contains a certificate and its key.
func (c *ControlPlane) WriteCertKubeconfig(path, name, context string) error {
	cert, err := os.ReadFile(c.PKI.Cert(name))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(c.PKI.Key(name))
	if err != nil {
		return err
	}
	return c.writeKubeconfig(path, context, &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key})
}

func (c *ControlPlane) writeKubeconfig(path, context string, user *clientcmdapi.AuthInfo) error {
	trusted, err := os.ReadFile(c.PKI.Cert(authority))
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[context] = &clientcmdapi.Cluster{Server: c.URL(), CertificateAuthorityData: trusted}
	config.AuthInfos[context] = user
	config.Contexts[context] = &clientcmdapi.Context{Cluster: context, AuthInfo: context}
	config.CurrentContext = context
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return WritePrivate(path, content)
}
