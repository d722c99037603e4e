package controllers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/controllers/objects"
	"github.com/parley-dev/parley/hack/test/testenv"
)

// These types are the input of the evaluator in hack/test/netpol. The evaluator decides whether
// policies allow traffic.
type (
	traffic struct {
		Source, Destination peer
		ResolvedPort        int
		Protocol            corev1.Protocol
	}
	// peer is a pod or an external address.
	peer struct {
		IP       string
		Internal *podPeer `json:",omitempty"`
	}
	podPeer struct {
		PodLabels       map[string]string
		NamespaceLabels map[string]string
		Namespace       string
	}
)

func clusterPolicies(t *testing.T) []networkingv1.NetworkPolicy {
	t.Helper()
	var policies networkingv1.NetworkPolicyList
	if err := env.Client.List(t.Context(), &policies); err != nil {
		t.Fatal(err)
	}
	return policies.Items
}

// evaluate asks an independent evaluator which flows the policies allow.
func evaluate(t *testing.T, policies []networkingv1.NetworkPolicy, flows []traffic) []bool {
	t.Helper()
	input, err := json.Marshal(map[string]any{"policies": policies, "traffic": flows})
	if err != nil {
		t.Fatal(err)
	}
	// The evaluator is a separate Go module, run from its own directory.
	evaluator := exec.CommandContext(t.Context(), "go", "run", ".")
	evaluator.Dir = testenv.Path("hack", "test", "netpol")
	evaluator.Stdin = bytes.NewReader(input)
	output, err := evaluator.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		t.Fatalf("%v\n%s", err, exit.Stderr)
	}
	var answers []bool
	if err == nil {
		err = json.Unmarshal(output, &answers)
	}
	if err != nil || len(answers) != len(flows) {
		t.Fatalf("%d answers for %d flows: %v", len(answers), len(flows), err)
	}
	return answers
}

func addressAt(ip string) peer { return peer{IP: ip} }

// podAt returns a pod with these labels in a namespace, and creates the namespace if necessary.
func podAt(t *testing.T, namespace, ip string, labels map[string]string) peer {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := env.Client.Create(t.Context(), ns.DeepCopy()); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(ns), ns); err != nil {
		t.Fatal(err)
	}
	return peer{IP: ip, Internal: &podPeer{Namespace: namespace, NamespaceLabels: ns.Labels, PodLabels: labels}}
}

// installedPod returns a pod of Parley with the labels in its install manifest.
func installedPod(t *testing.T, component, ip string) peer {
	t.Helper()
	manifest, err := os.ReadFile(testenv.Path("config", component, "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.Unmarshal(manifest, &deployment); err != nil {
		t.Fatal(err)
	}
	return podAt(t, deployment.Namespace, ip, deployment.Spec.Template.Labels)
}

func sessionPod(t *testing.T, namespace, name, ip string) peer {
	t.Helper()
	create(t, makeConversation(namespace, name).Obj())
	return podAt(t, namespace, ip, kubelet{t, namespace, name}.pod().Labels)
}

type reach struct {
	name     string
	from, to peer
	port     int
	protocol corev1.Protocol
	want     bool
}

func expectReach(t *testing.T, policies []networkingv1.NetworkPolicy, rows []reach) {
	t.Helper()
	flows := make([]traffic, 0, len(rows))
	for _, r := range rows {
		flows = append(flows, traffic{Source: r.from, Destination: r.to, ResolvedPort: r.port, Protocol: r.protocol})
	}
	for i, got := range evaluate(t, policies, flows) {
		if r := rows[i]; got != r.want {
			t.Errorf("%s: %s reaches %s:%d over %s: %t, want %t", r.name, r.from.IP, r.to.IP, r.port, r.protocol, got, r.want)
		}
	}
}

const (
	tcp = corev1.ProtocolTCP
	udp = corev1.ProtocolUDP
)

// Policies, session pods and namespaces come from the API server. The labels of the facade, the
// manager and the archive come from their manifests.
func TestNetworkPoliciesAllowOnlyTheNecessaryTraffic(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	startManager(t, ns)
	create(t, userSettings(ns, "ada"))
	var apiServer corev1.Service
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "kubernetes"},
		&apiServer); err != nil {
		t.Fatal(err)
	}
	var rows []reach
	for _, family := range []struct{ name, session, pods, public string }{
		{"IPv4", "four", "10.1.0.", "93.184.215.14"}, {"IPv6", "six", "fd01::", "2606:2800:21f::14"},
	} {
		at := func(host int) string { return fmt.Sprint(family.pods, host) }
		row := func(name string, from, to peer, port int, protocol corev1.Protocol, want bool) {
			rows = append(rows, reach{family.name + " " + name, from, to, port, protocol, want})
		}
		self, other := sessionPod(t, ns, family.session, at(1)), sessionPod(t, ns, "other-"+family.session, at(2))
		facade, manager := installedPod(t, "facade", at(3)), installedPod(t, "manager", at(4))
		archive := installedPod(t, "archive", at(13))
		dns := podAt(t, "kube-system", at(5), map[string]string{"k8s-app": "kube-dns"})
		openshift := podAt(t, "openshift-dns", at(6), map[string]string{"dns.operator.openshift.io/daemonset-dns": "default"})
		system := podAt(t, "kube-system", at(7), map[string]string{"k8s-app": "metrics-server"})
		fakeDNS := podAt(t, ns, at(8), map[string]string{"k8s-app": "kube-dns"})
		neighbour := podAt(t, ns, at(9), map[string]string{"app": "db"})
		fakeFacade := podAt(t, "default", at(10), facade.Internal.PodLabels)
		unlabelled := podAt(t, facade.Internal.Namespace, at(11), nil)
		internet := addressAt(family.public)

		row("DNS", self, dns, 53, udp, true)
		row("DNS", self, dns, 53, tcp, true)
		row("DNS's metrics", self, dns, 9153, tcp, false)
		row("OpenShift's DNS", self, openshift, 5353, udp, true)
		row("OpenShift's DNS", self, openshift, 5353, tcp, true)
		row("OpenShift's DNS, another port", self, openshift, 9154, tcp, false)
		row("a pod of the system, port 53", self, system, 53, udp, false)
		row("a pod of the namespace with the labels of DNS", self, fakeDNS, 53, udp, false)
		row("the internet", self, internet, 443, tcp, true)
		row("the internet", self, internet, 22, tcp, true)
		row("the internet", self, internet, 443, udp, true)
		row("from the internet", internet, self, session.Port, tcp, false)
		row("another session", self, other, session.Port, tcp, false)
		row("another session, port 53", self, other, 53, udp, false)
		row("a pod of the namespace", self, neighbour, 5432, tcp, false)
		row("the facade's API", self, facade, 3000, tcp, false)
		row("the facade's archive", self, facade, objects.ArchivePort, tcp, true)
		row("the facade's archive", self, facade, objects.ArchivePort, udp, false)
		row("the archive", self, archive, objects.ArchivePort, tcp, true)
		row("the archive's metrics", self, archive, 8080, tcp, false)
		row("from the archive", archive, self, session.Port, tcp, false)
		row("the facade's metrics", self, facade, 8080, tcp, false)
		row("the archive port on the manager", self, manager, objects.ArchivePort, tcp, false)
		row("the manager's webhook", self, manager, 9443, tcp, false)
		row("the archive port on a pod with the facade's labels", self, fakeFacade, objects.ArchivePort, tcp, false)
		row("from the facade", facade, self, session.Port, tcp, true)
		row("from the facade, another port", facade, self, 22, tcp, false)
		row("from the manager", manager, self, session.Port, tcp, true)
		row("from another session", other, self, session.Port, tcp, false)
		row("from a pod of the namespace", neighbour, self, session.Port, tcp, false)
		row("from another pod of Parley's namespace", unlabelled, self, session.Port, tcp, false)
		row("from a session in Parley's namespace", podAt(t, facade.Internal.Namespace, at(12), self.Internal.PodLabels),
			self, session.Port, tcp, false)
		row("from a pod of the system", system, self, session.Port, tcp, false)
		row("from a pod with the facade's labels in another namespace", fakeFacade, self, session.Port, tcp, false)
		// Policies of sessions do not affect other pods.
		row("between other pods", neighbour, fakeDNS, 5432, tcp, true)
	}
	self := rows[0].from
	for name, address := range map[string]string{
		"the metadata service of AWS, Azure, GCP and others": "169.254.169.254",
		"the metadata service of containers on AWS":          "169.254.170.2",
		"the virtual machine host on Azure":                  "168.63.129.16",
		"the metadata service of Alibaba":                    "100.100.100.200",
		"the metadata service of Oracle":                     "192.0.0.192",
		"the metadata service of AWS over IPv6":              "fd00:ec2::254",
		"the metadata service of GCP over IPv6":              "fd20:ce::254",
		"a link-local address":                               "169.254.1.1",
		"a link-local address of IPv6":                       "fe80::1",
		"the API server's Service":                           apiServer.Spec.ClusterIP,
		"a node":                                             "192.168.1.10",
		"a node behind a carrier's NAT":                      "100.64.0.1",
		"a pod of a cluster in class E":                      "240.10.0.1",
		"a Service in the benchmark range":                   "198.18.0.1",
		"a local address":                                    "127.0.0.1",
		"the unspecified address":                            "0.0.0.0",
		"a local address of IPv6":                            "::1",
		"a private address of IPv6":                          "fc00::1",
	} {
		for port, protocol := range map[int]corev1.Protocol{80: tcp, 443: tcp, 6443: tcp, 53: udp, objects.ArchivePort: tcp} {
			rows = append(rows, reach{name, self, addressAt(address), port, protocol, false})
		}
	}
	cache := addressAt("169.254.20.10")
	rows = append(rows,
		reach{"the node's DNS", self, cache, 53, udp, true},
		reach{"the node's DNS", self, cache, 53, tcp, true},
		reach{"the node's DNS, its metrics", self, cache, 9253, tcp, false},
	)
	expectReach(t, clusterPolicies(t), rows)
}

// Each class has its own policy, which applies only to its sessions.
func TestSessionsReachOnlyThePrivateAddressesThatTheirClassAllows(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	create(t,
		objects.NetworkPolicy(ns, classAllowing("lab", "10.20.1.1/16", "fd01::/16", "100.64.0.0/10", "168.63.0.0/16",
			"fc00::/7"), "parley-system", nil),
		objects.NetworkPolicy(ns, classAllowing("cloud", "169.254.169.254/32"), "parley-system", nil),
	)
	sessionOf := func(class, ip string) peer {
		labels := map[string]string{v1alpha1.LabelManagedBy: v1alpha1.ManagedBy,
			v1alpha1.LabelComponent: v1alpha1.ComponentSession, v1alpha1.LabelSessionClass: class}
		return podAt(t, ns, ip, labels)
	}
	lab, cloud := sessionOf("lab", "10.1.0.1"), sessionOf("cloud", "10.1.0.2")
	expectReach(t, clusterPolicies(t), []reach{
		{"an allowed range", lab, addressAt("10.20.255.1"), 5432, tcp, true},
		{"an allowed range of IPv6", lab, addressAt("fd01::1"), 5432, tcp, true},
		{"another private address", lab, addressAt("10.21.0.1"), 5432, tcp, false},
		{"the internet", lab, addressAt("93.184.215.14"), 443, tcp, true},
		{"an allowed range that contains a metadata service", lab, addressAt("100.64.0.1"), 80, tcp, true},
		{"the metadata service in that range", lab, addressAt("100.100.100.200"), 80, tcp, false},
		{"Azure's metadata service in an allowed range", lab, addressAt("168.63.129.16"), 80, tcp, false},
		{"AWS's metadata service in an allowed range", lab, addressAt("fd00:ec2::254"), 80, tcp, false},
		{"an allowed metadata service", cloud, addressAt("169.254.169.254"), 80, tcp, true},
		{"another metadata service", cloud, addressAt("169.254.170.2"), 80, tcp, false},
		{"a range that another class allows", cloud, addressAt("10.20.0.1"), 5432, tcp, false},
		{"a session of another class", lab, cloud, session.Port, tcp, false},
		{"the archive", cloud, installedPod(t, "archive", "10.1.0.3"), objects.ArchivePort, tcp, true},
	})
}

func classAllowing(name string, ranges ...string) objects.Class {
	return objects.Class{Name: name,
		Spec: v1alpha1.SessionClassSpec{Network: &v1alpha1.SessionNetwork{EgressAllow: ranges}}}
}
