package rest

import (
	_ "embed" // for openapi.yaml

	"sigs.k8s.io/yaml"
)

//go:embed openapi.yaml
var openAPIDocument []byte

// OpenAPI is the contract as an OpenAPI document in JSON.
var OpenAPI = mustConvert(openAPIDocument)

func mustConvert(document []byte) []byte {
	converted, err := yaml.YAMLToJSON(document)
	if err != nil {
		panic("openapi.yaml: " + err.Error())
	}
	return converted
}
