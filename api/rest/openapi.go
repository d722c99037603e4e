package rest

import (
	_ "embed" // for openapi.yaml
	"net/http"

	"sigs.k8s.io/yaml"
)

//go:embed openapi.yaml
var openAPIDocument []byte

var openAPIJSON = mustConvert(openAPIDocument)

func mustConvert(document []byte) []byte {
	converted, err := yaml.YAMLToJSON(document)
	if err != nil {
		panic("openapi.yaml: " + err.Error())
	}
	return converted
}

func openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPIJSON) // the client is gone; nobody is left to tell
}
