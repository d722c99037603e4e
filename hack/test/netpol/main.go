// Command netpol reports which traffic NetworkPolicies allow, as computed by
// github.com/mattfenwick/cyclonus. It reads a question from standard input and writes the answers,
// in order, to standard output, both as JSON.
//
// It is a separate module, so that the product does not depend on cyclonus.
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
