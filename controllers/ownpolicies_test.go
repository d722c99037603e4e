package controllers

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	install "github.com/parley-dev/parley/hack/release/manifests"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// installedPolicies returns the NetworkPolicies that a kustomization creates for Parley's own pods.
func installedPolicies(t *testing.T, kustomization ...string) (policies []networkingv1.NetworkPolicy) {
	t.Helper()
	built, err := install.Build(t.Context(), testenv.Path(append([]string{"config"}, kustomization...)...),
		testenv.Path("bin", "k8s", "kubectl"), "kustomize")
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range built {
		if object.GetKind() != "NetworkPolicy" {
			continue
		}
		var policy networkingv1.NetworkPolicy
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &policy); err != nil {
			t.Fatal(err)
		}
		policies = append(policies, policy)
	}
	return policies
}

func TestParleysOwnPodsHaveNetworkPolicies(t *testing.T) {
	t.Parallel()
	manager, facade, archive := installedPod(t, "manager", "10.1.0.1"), installedPod(t, "facade", "10.1.0.2"),
		installedPod(t, "archive", "10.1.0.3")
	agent := podAt(t, "default", "10.1.0.4", map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
		v1alpha1.LabelComponent: v1alpha1.ComponentSession})
	stranger := podAt(t, "default", "10.1.0.5", map[string]string{"app": "web"})
	neighbour := podAt(t, manager.Internal.Namespace, "10.1.0.6", nil)
	prometheus := podAt(t, "monitoring", "10.1.0.7", map[string]string{"app": "prometheus"})
	dns := podAt(t, "kube-system", "10.1.0.8", map[string]string{"k8s-app": "kube-dns"})
	systemPod := podAt(t, "kube-system", "10.1.0.9", nil)
	openshiftDNS := podAt(t, "openshift-dns", "10.1.0.10", nil)
	nodeDNS, node, internet := addressAt("169.254.20.10"), addressAt("192.168.1.10"), addressAt("93.184.215.14")
	rows := []reach{
		{"the API server calls the webhook", node, manager, 9443, tcp, true},
		{"the API server calls the webhook over a tunnel", systemPod, manager, 9443, tcp, true},
		{"metrics of the manager", prometheus, manager, 8443, tcp, true},
		{"metrics of the facade", prometheus, facade, 8080, tcp, true},
		{"metrics of the archive", prometheus, archive, 8080, tcp, true},
		{"users", internet, facade, 3000, tcp, true},
		{"an ingress controller", stranger, facade, 3000, tcp, true},
		{"a session uploads", agent, archive, 3001, tcp, true},
		{"the facade reads the archive", facade, archive, 3001, tcp, true},
		{"the manager reads the archive", manager, archive, 3001, tcp, true},
		{"the facade calls a session", facade, agent, session.Port, tcp, true},
		{"the manager binds a warm pod", manager, agent, session.Port, tcp, true},
		{"a bucket", archive, internet, 443, tcp, true},

		{"a stranger reads the archive", stranger, archive, 3001, tcp, false},
		{"a pod in Parley's namespace reads the archive", neighbour, archive, 3001, tcp, false},
		{"a node reads the archive", node, archive, 3001, tcp, false},
		{"a stranger reads the manager's health", stranger, manager, 8081, tcp, false},
		{"a stranger reads the archive's health", stranger, archive, 3000, tcp, false},
		{"the facade calls other pods", facade, stranger, session.Port, tcp, false},
		{"the facade reaches the metadata service", facade, addressAt("169.254.169.254"), 80, tcp, false},
		{"the archive calls a session", archive, agent, session.Port, tcp, false},
		{"the archive calls other pods", archive, stranger, 80, tcp, false},
		{"the manager calls other pods", manager, stranger, 80, tcp, false},
		{"the manager calls other pods on the port of sessions", manager, stranger, session.Port, tcp, false},
	}
	for _, pod := range []peer{manager, facade, archive} {
		for _, port := range []int{443, 6443, 8443, 16443} {
			rows = append(rows, reach{"the API server", pod, node, port, tcp, true})
		}
		rows = append(rows,
			reach{"DNS", pod, dns, 53, udp, true},
			reach{"DNS over TCP", pod, dns, 53, tcp, true},
			reach{"DNS pods without labels", pod, systemPod, 53, udp, true},
			reach{"OpenShift's DNS", pod, openshiftDNS, 5353, udp, true},
			reach{"the node's DNS", pod, nodeDNS, 53, udp, true},
			reach{"the internet over ssh", pod, internet, 22, tcp, false},
		)
	}
	expectReach(t, installedPolicies(t, "default"), append(rows,
		reach{"the facade calls the manager", facade, manager, 9443, tcp, false}))
	expectReach(t, installedPolicies(t, "samples", "signin"), append(rows,
		reach{"the facade onboards people", facade, manager, 9443, tcp, true},
		reach{"the facade calls other webhooks", facade, neighbour, 9443, tcp, false},
		reach{"the archive calls the manager", archive, manager, 9443, tcp, false},
		reach{"the facade reaches the provider", facade, internet, 443, tcp, true},
		reach{"the manager reaches the provider", manager, internet, 443, tcp, true}))
}
