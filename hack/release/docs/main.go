// Command docs writes docs/api.md, the reference of Parley's kinds, from the generated CRDs.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const preamble = `# API reference

<!-- Written by hack/release/docs from config/crd/bases: run make manifests. -->

Group ` + "`parley.dev`" + `, version ` + "`v1alpha1`" + `. ` + "`kubectl explain conversation.spec`" +
	` shows the same
texts in a terminal. Fields in bold are required.
`

func main() {
	text := preamble
	for _, kind := range []string{"usersettings", "conversations", "sessionclasses"} {
		crd, err := readCRD(filepath.Join("config", "crd", "bases", "parley.dev_"+kind+".yaml"))
		if err != nil {
			log.Fatal(err)
		}
		text += reference(crd)
	}
	if err := os.WriteFile(filepath.Join("docs", "api.md"), []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}

func readCRD(file string) (*apiextensionsv1.CustomResourceDefinition, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return crd, nil
}
