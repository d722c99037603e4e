// Command netpol reports which traffic NetworkPolicies allow. The library
// github.com/mattfenwick/cyclonus computes the results. The command reads policies and traffic as
// JSON from standard input. It writes a list of booleans as JSON, one for each kind of traffic.
//
// It is a separate module, so that Parley does not depend on cyclonus.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	networkingv1 "k8s.io/api/networking/v1"
)

type question struct {
	Policies []*networkingv1.NetworkPolicy `json:"policies"`
	Traffic  []*matcher.Traffic            `json:"traffic"`
}

func main() {
	var q question
	input := json.NewDecoder(os.Stdin)
	input.DisallowUnknownFields()
	if err := input.Decode(&q); err != nil {
		log.Fatalf("read the question: %v", err)
	}
	policy := matcher.BuildNetworkPolicies(false, q.Policies)
	answers := make([]bool, 0, len(q.Traffic))
	for _, traffic := range q.Traffic {
		answers = append(answers, policy.IsTrafficAllowed(traffic).IsAllowed())
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		log.Fatalf("write the answers: %v", err)
	}
}
