// Command condition puts the condition on which the API server asks about Conversations into the
// configuration of the webhook. controller-gen takes it from one line of a comment only, on which
// nobody could read it.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/webhook"
)

func main() {
	if err := run(filepath.Join("config", "webhook", "manifests.yaml")); err != nil {
		log.Fatal(err)
	}
}

// run replaces the word that stands for the condition in the marker.
func run(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var configuration map[string]any
	if err := yaml.Unmarshal(text, &configuration); err != nil {
		return err
	}
	replaced := 0
	for _, entry := range configuration["webhooks"].([]any) {
		conditions, _ := entry.(map[string]any)["matchConditions"].([]any)
		for _, condition := range conditions {
			if condition := condition.(map[string]any); condition["expression"] == "NeedsCode" {
				condition["expression"] = webhook.NeedsCode()
				replaced++
			}
		}
	}
	if replaced != 1 {
		return fmt.Errorf("%s has %d places for the condition", path, replaced)
	}
	if text, err = yaml.Marshal(configuration); err != nil {
		return err
	}
	return os.WriteFile(path, append([]byte("---\n"), text...), 0o644)
}
