package cluster

import (
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// WriteAdminKubeconfig writes a kubeconfig that may do everything.
func (c *ControlPlane) WriteAdminKubeconfig(path, context string) error {
	return c.WriteCertKubeconfig(path, adminCert, context)
}

// WriteTokenKubeconfig writes a kubeconfig that reads its token from a file,
// named relative to the kubeconfig, each time the token may have changed.
func (c *ControlPlane) WriteTokenKubeconfig(path, tokenFile, context string) error {
	return c.writeKubeconfig(path, context, &clientcmdapi.AuthInfo{TokenFile: tokenFile})
}

// WriteCertKubeconfig writes a kubeconfig that holds a certificate of the PKI.
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
