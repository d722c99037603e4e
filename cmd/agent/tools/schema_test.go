package tools

import (
	"encoding/json"
	"testing"
)

func TestSchemasOfToolServersAreMadeValidForModels(t *testing.T) {
	t.Parallel()
	for name, c := range map[string][2]string{
		"nothing to do": {`{"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]}},` +
			`"required":["a"]}`,
			`{"properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]}},"required":["a"],"type":"object"}`},
		"no schema": {`null`, `{"properties":{},"type":"object"}`},
		"alternatives": {`{"properties":{"p":{}},"required":["p"],"oneOf":[{"properties":{"a":{},"b":{}},` +
			`"required":["a","b"]},` +
			`{"properties":{"b":{"type":"null"},"c":{}},"required":["b"]}]}`,
			`{"properties":{"a":{},"b":{"anyOf":[{},{"type":"null"}]},"c":{},"p":{}},"required":["p","b"],"type":"object"}`},
		"all of": {`{"allOf":[{"properties":{"a":{}},"required":["a"]},{"properties":{"b":{}},"required":["b"]}],` +
			`"if":{},"then":{}}`, `{"properties":{"a":{},"b":{}},"required":["a","b"],"type":"object"}`},
		"a reference": {`{"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/T",` +
			`"definitions":{"T":{"type":"object","properties":{"a":{"$ref":"#/definitions/T"}},"required":["a"]}}}`,
			`{"definitions":{"T":{"properties":{"a":{"$ref":"#/definitions/T"}},"required":["a"],"type":"object"}},` +
				`"properties":{"a":{"$ref":"#/definitions/T"}},"required":["a"],"type":"object"}`},
		"endless": {`{"anyOf":[{"$ref":"#"},{"$ref":"#"},{"$ref":"#"},{"$ref":"#/missing"},{"$ref":"elsewhere"}]}`,
			`{"properties":{},"type":"object"}`},
		"old drafts": {`{"type":["object","null"],"properties":{"a":{"type":"array"},"b":{"type":"any","required":true},` +
			`"c":{"type":"number","minimum":1,"exclusiveMinimum":true},"d":{"type":"array","items":[{}]},"e":5,` +
			`"f":{"enum":[]}},` +
			`"required":["a",5,"gone"]}`, `{"properties":{"a":{"items":{},"type":"array"},"b":{},` +
			`"c":{"minimum":1,"type":"number"},"d":{"items":{},"type":"array"},"f":{}},"required":["a"],"type":"object"}`},
		"names of properties": {`{"properties":{"a b":{},"$filter":{},"ok.1":{}},"required":["a b"]}`,
			`{"properties":{"ok.1":{}},"type":"object"}`},
		"properties with the names of keywords": {`{"properties":{"type":{"type":"string"},"required":{},"enum":{}}}`,
			`{"properties":{"enum":{},"required":{},"type":{"type":"string"}},"type":"object"}`},
	} {
		var input map[string]any
		if err := json.Unmarshal([]byte(c[0]), &input); err != nil {
			t.Fatal(err)
		}
		if got, _ := json.Marshal(usableSchema(input)); string(got) != c[1] {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c[1])
		}
		if got, _ := json.Marshal(input); name == "nothing to do" && len(got) != len(c[0]) {
			t.Errorf("the input was changed to %s", got)
		}
	}
}
