package session

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const (
	// maxTermination is where a kubelet cuts a termination message.
	maxTermination = 4096
	// maxText bounds each text in which a session says something of its end.
	maxText = 1024
	// maxBranch, maxFiles and maxTokens are the bounds of the schema.
	maxBranch = 255
	maxFiles  = 1_000_000_000
	maxTokens = 1_000_000_000_000
)

// Termination is why a session ended. A session that ends of its own accord writes it as JSON into
// its termination message and exits with status 0; any other status means that it crashed and is to
// be restarted.
type Termination struct {
	// Reason is Idle, Completed or Failed. With another status than 0 it is OOMKilled or
	// Unresponsive, or there is none.
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Result is what came of the session, where it did something.
	Result *v1alpha1.ConversationResult `json:"result,omitempty"`
}

// ParseTermination reads the termination message of a session that exited with status 0. An image
// with an entry point of its own may have written none, or anything: then the session completed.
// What it wrote is not passed on, since nothing promises that it holds no secret. said is whether
// the session wrote why it ended.
func ParseTermination(message string) (t Termination, said bool) {
	var written struct {
		Termination
		Result json.RawMessage `json:"result"`
	}
	endings := []string{v1alpha1.ReasonIdle, v1alpha1.ReasonCompleted, v1alpha1.ReasonFailed}
	if err := json.Unmarshal([]byte(message), &written); err != nil || !slices.Contains(endings, written.Reason) {
		return Termination{Reason: v1alpha1.ReasonCompleted}, false
	}
	t = Termination{Reason: written.Reason, Message: cut(written.Message, maxText)}
	// A result that cannot be read takes nothing from the reason.
	if result := new(v1alpha1.ConversationResult); len(written.Result) > 0 && json.Unmarshal(written.Result,
		result) == nil {
		t.Result = bounded(result)
	}
	return t, true
}

// Why a process ended that did not end by itself.
const (
	// OOMKilled: the kernel killed it because memory ran out, in a kubelet's word.
	OOMKilled = "OOMKilled"
	// Unresponsive: the supervisor ended it because it did not answer any more.
	Unresponsive = "Unresponsive"
)

// WhyEnded reads the termination message of a session that exited with another status than 0. It is
// empty where that says nothing.
func WhyEnded(message string) string {
	var t Termination
	if json.Unmarshal([]byte(message), &t) != nil || t.Reason != OOMKilled && t.Reason != Unresponsive {
		return ""
	}
	return t.Reason
}

var (
	commitForm = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
	costForm   = regexp.MustCompile(`^([0-9]{1,9})(?:(\.[0-9]{1,12})[0-9]*)?$`)
)

// bounded is a result that a status may hold: long texts are cut, and what is not valid is left
// out. It is nil if nothing is left.
func bounded(result *v1alpha1.ConversationResult) *v1alpha1.ConversationResult {
	if result == nil {
		return nil
	}
	r := *result
	r.Summary = cut(printable(r.Summary), maxText)
	if !commitForm.MatchString(r.Commit) {
		r.Commit = ""
	}
	// A name that is cut is another one.
	if len(r.Branch) > maxBranch || printable(r.Branch) != r.Branch || strings.ContainsAny(r.Branch, " \t\n") {
		r.Branch = ""
	}
	// An exact sum of small prices may have more digits than anybody needs.
	if cost := costForm.FindStringSubmatch(r.Cost); cost != nil {
		r.Cost = cost[1] + cost[2]
	} else {
		r.Cost = ""
	}
	if r.FilesChanged < 0 || r.FilesChanged > maxFiles {
		r.FilesChanged = 0
	}
	for _, tokens := range []*int64{&r.InputTokens, &r.OutputTokens} {
		if *tokens < 0 || *tokens > maxTokens {
			*tokens = 0
		}
	}
	if r == (v1alpha1.ConversationResult{}) {
		return nil
	}
	return &r
}

// printable is a text without what no terminal should be sent: control characters, and bytes that
// are no text.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c != '\n' && c != '\t' && (unicode.IsControl(c) || c == unicode.ReplacementChar) {
			return -1
		}
		return c
	}, text)
}

// Encode is the termination message that ParseTermination reads. It is never longer than a kubelet
// keeps.
func (t Termination) Encode() ([]byte, error) {
	t.Message, t.Result = cut(t.Message, maxText), bounded(t.Result)
	for {
		text, err := encode(t)
		if err != nil || len(text) <= maxTermination {
			return text, err
		}
		// What JSON must escape takes up to six times its room.
		if t.Result != nil && len(t.Result.Summary) >= len(t.Message) {
			t.Result.Summary = cut(t.Result.Summary, len(t.Result.Summary)/2)
		} else {
			t.Message = cut(t.Message, len(t.Message)/2)
		}
	}
}

func encode(t Termination) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(t)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// cut shortens a text to a number of bytes, and not within a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}
