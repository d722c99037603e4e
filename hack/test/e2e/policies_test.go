package e2e

import (
	"fmt"
	"os/exec"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// policyTable is the nftables table of enforced policies. Its chains see addresses after kube-proxy
// has translated them.
const policyTable = `table inet e2e_policies {
  chain forward { type filter hook forward priority 10; %[1]s }
  chain input { type filter hook input priority 10; %[1]s }
  chain egress { ct state established,related accept; %[2]s drop; }
  chain ingress { ct state established,related accept; %[3]s drop; }
}
`

// enforcePolicies enforces the NetworkPolicies that select a pod, until the check ends. This is
// necessary because the node's network plugin ignores NetworkPolicies. Traffic from the node itself
// is always allowed.
func (t *t) enforcePolicies(pod *corev1.Pod) {
	policies := &networkingv1.NetworkPolicyList{}
	t.must(t.client.List(t.ctx, policies, client.InNamespace(pod.Namespace)))
	var egress, ingress strings.Builder
	selected := 0
	for i := range policies.Items {
		spec := &policies.Items[i].Spec
		if !selects(&spec.PodSelector, pod.Labels) {
			continue
		}
		selected++
		for _, rule := range spec.Egress {
			egress.WriteString(t.acceptRules("daddr", rule.To, rule.Ports))
		}
		for _, rule := range spec.Ingress {
			ingress.WriteString(t.acceptRules("saddr", rule.From, rule.Ports))
		}
	}
	if selected == 0 {
		t.Fatalf("no NetworkPolicy selects the pod %s", pod.Name)
	}
	jumps := fmt.Sprintf("ip saddr %[1]s jump egress; ip daddr %[1]s jump ingress;", pod.Status.PodIP)
	t.nft(fmt.Sprintf(policyTable, jumps, egress.String(), ingress.String()))
	t.Cleanup(func() { t.nft("delete table inet e2e_policies\n") })
}

func selects(selector *metav1.LabelSelector, of map[string]string) bool {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && parsed.Matches(labels.Set(of))
}

// acceptRules translates one rule of a policy to nftables. It ignores IPv6 peers, because the node
// has no IPv6.
func (t *t) acceptRules(side string, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort) string {
	var rules strings.Builder
	for _, peer := range peers {
		for _, addresses := range t.addressesOf(side, peer) {
			if len(ports) == 0 {
				fmt.Fprintf(&rules, "%s accept; ", addresses)
			}
			for _, port := range ports {
				fmt.Fprintf(&rules, "%s %s dport %d accept; ", addresses, strings.ToLower(string(*port.Protocol)),
					port.Port.IntVal)
			}
		}
	}
	return rules.String()
}

// addressesOf returns the nftables matches for the addresses of a peer. The peers of Parley's
// policies are blocks of addresses, or pods of a namespace.
func (t *t) addressesOf(side string, peer networkingv1.NetworkPolicyPeer) (matches []string) {
	if block := peer.IPBlock; block != nil {
		if strings.Contains(block.CIDR, ":") {
			return nil
		}
		match := ""
		if block.CIDR != "0.0.0.0/0" {
			match = fmt.Sprintf("ip %s %s", side, block.CIDR)
		}
		if len(block.Except) > 0 {
			match += fmt.Sprintf(" ip %s != { %s }", side, strings.Join(block.Except, ", "))
		}
		return []string{match}
	}
	namespaces, pods := &corev1.NamespaceList{}, &corev1.PodList{}
	t.must(t.client.List(t.ctx, namespaces))
	t.must(t.client.List(t.ctx, pods))
	for _, ns := range namespaces.Items {
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.Namespace == ns.Name && pod.Status.PodIP != "" && selects(peer.NamespaceSelector, ns.Labels) &&
				selects(peer.PodSelector, pod.Labels) {
				matches = append(matches, fmt.Sprintf("ip %s %s", side, pod.Status.PodIP))
			}
		}
	}
	return matches
}

func (t *t) nft(script string) {
	cmd := exec.Command("nft", "--file", "-")
	cmd.Stdin = strings.NewReader(script)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("nft: %v: %s\n%s", err, output, script)
	}
}
