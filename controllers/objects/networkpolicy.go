package objects

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// sessionsPolicy is the name prefix of the NetworkPolicies for session pods.
	sessionsPolicy = "parley-sessions"

	// ArchivePort is the only port of Parley that sessions may reach, on the archive or on facades
	// with a built-in archive. The port accepts uploads of session data and serves nothing else.
	ArchivePort = 3001

	labelName        = "app.kubernetes.io/name"
	componentFacade  = "facade"
	componentArchive = "archive"
	componentManager = "manager"
)

// privateRanges are blocked for sessions: cluster and node networks, and the metadata services of
// clouds, which hand out the node's credentials.
var privateRanges = map[string][]string{
	"0.0.0.0/0": {
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3",
	},
	"::/0": {"::1/128", "fc00::/7", "fe80::/10", "ff00::/8"},
}

// metadataRanges are the addresses of the metadata services of clouds. A wider allowed range, such
// as a cluster's network, does not open these addresses. Only an entry for such an address itself
// opens it.
var metadataRanges = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
	netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), // Oracle
	netip.MustParsePrefix("fd00:ec2::254/128"),      // AWS
	netip.MustParsePrefix("fd20:ce::254/128"),       // Google
}

// NetworkPolicyName returns the name of the NetworkPolicy of a class.
func NetworkPolicyName(class string) string { return sessionsPolicy + "-" + class }

// NetworkPolicy returns the policy of the sessions of a class in a namespace. The sessions may
// reach the private ranges that the operator and the class allow. operator is the operator's
// namespace.
func NetworkPolicy(namespace string, class Class, operator string, egressAllow []string) *networkingv1.NetworkPolicy {
	allowed := slices.Concat(egressAllow, ptr.Deref(class.Spec.Network, v1alpha1.SessionNetwork{}).EgressAllow)
	selector, meta := sessionSelector(), sharedMeta(namespace, NetworkPolicyName(class.Name))
	selector[v1alpha1.LabelSessionClass] = class.Name
	meta.Labels[v1alpha1.LabelSessionClass] = class.Name
	return &networkingv1.NetworkPolicy{
		ObjectMeta: meta,
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: selector},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{parleyPods(operator, componentFacade), parleyPods(operator,
					componentManager)},
				Ports: policyPorts(session.Port, corev1.ProtocolTCP),
			}},
			Egress: append(dnsRules(),
				networkingv1.NetworkPolicyEgressRule{
					To: []networkingv1.NetworkPolicyPeer{parleyPods(operator, componentArchive), parleyPods(operator,
						componentFacade)},
					Ports: policyPorts(ArchivePort, corev1.ProtocolTCP),
				},
				networkingv1.NetworkPolicyEgressRule{To: internetPeers(allowed)},
			),
		},
	}
}

// dnsRules let sessions query only the cluster's own resolvers, because DNS names can carry data
// out.
func dnsRules() []networkingv1.NetworkPolicyEgressRule {
	rule := func(port int32, resolver networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyEgressRule {
		return networkingv1.NetworkPolicyEgressRule{
			To:    []networkingv1.NetworkPolicyPeer{resolver},
			Ports: policyPorts(port, corev1.ProtocolUDP, corev1.ProtocolTCP),
		}
	}
	return []networkingv1.NetworkPolicyEgressRule{
		rule(53, podsOf("kube-system", map[string]string{"k8s-app": "kube-dns"})),
		// Policies apply to the ports of pods, not of Services. The pods behind OpenShift's DNS
		// Service listen on port 5353.
		rule(5353, podsOf("openshift-dns", nil)),
		// NodeLocal DNSCache listens in the node's network, where pod selectors do not apply.
		rule(53, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "169.254.20.10/32"}}),
	}
}

// internetPeers returns all public addresses and the allowed private ranges.
func internetPeers(allowed []string) []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: all,
			Except: privateRanges[all]}})
	}
	for _, cidr := range allowed {
		block := &networkingv1.IPBlock{CIDR: cidr}
		// Do not change an invalid range: the API server rejects it with an error that names the
		// field.
		if allowed, err := netip.ParsePrefix(cidr); err == nil {
			block.CIDR = allowed.Masked().String()
			for _, metadata := range metadataRanges {
				if allowed.Bits() < metadata.Bits() && allowed.Contains(metadata.Addr()) {
					block.Except = append(block.Except, metadata.String())
				}
			}
		}
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: block})
	}
	return peers
}

// parleyPods selects the pods of a component of Parley. It does not select sessions, which may run
// in the operator's namespace too.
func parleyPods(operator, component string) networkingv1.NetworkPolicyPeer {
	return podsOf(operator, map[string]string{labelName: v1alpha1.ManagedBy, v1alpha1.LabelComponent: component})
}

func podsOf(namespace string, labels map[string]string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: labels},
	}
}

func policyPorts(port int32, protocols ...corev1.Protocol) []networkingv1.NetworkPolicyPort {
	var ports []networkingv1.NetworkPolicyPort
	for _, protocol := range protocols {
		ports = append(ports, networkingv1.NetworkPolicyPort{Port: ptr.To(intstr.FromInt32(port)),
			Protocol: ptr.To(protocol)})
	}
	return ports
}
