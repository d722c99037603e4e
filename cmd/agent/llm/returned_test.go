package llm

import (
	"encoding/json"
	"testing"
)

func TestPiecesOfSignedReasoningAreJoined(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pieces []string
		want   string
	}{
		{[]string{`[{"type":"reasoning.text","text":"I ","index":0}]`, `[{"type":"reasoning.text","text":"think","index":0}]`,
			`[{"type":"reasoning.text","signature":"s1","index":0},{"type":"reasoning.encrypted","data":"x","index":1}]`},
			`[{"index":0,"signature":"s1","text":"I think","type":"reasoning.text"},` +
				`{"data":"x","index":1,"type":"reasoning.encrypted"}]`},
		{[]string{`[{"type":"thinking","thinking":"a","signature":""}]`,
			`[{"type":"thinking","thinking":"","signature":"s1"}]`,
			`[{"type":"thinking","thinking":"b","signature":"s2"}]`},
			`[{"signature":"s1","thinking":"a","type":"thinking"},{"signature":"s2","thinking":"b","type":"thinking"}]`},
		{[]string{`{"google":{"thought_signature":"old"}}`, `{"google":{"thought_signature":"new"}}`},
			`{"google":{"thought_signature":"new"}}`},
	} {
		var joined json.RawMessage
		for _, piece := range c.pieces {
			joined = joinItems(joined, json.RawMessage(piece))
		}
		if string(joined) != c.want {
			t.Errorf("got %s, want %s", joined, c.want)
		}
	}
}
