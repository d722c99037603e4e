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
	// maxTermination is the kubelet's limit for a termination message, in bytes.
	maxTermination = 4096
	// maxText bounds each text of a termination, in bytes.
	maxText = 1024
	// maxBranch, maxLink, maxFiles and maxTokens are the limits of the CRD's schema. The regular
	// expression linkForm does not contain the limit maxLink, because that would make the compiled
	// pattern much larger.
	maxBranch = 255
	maxLink   = 512
	maxFiles  = 1_000_000_000
	maxTokens = 1_000_000_000_000
)

// Termination says why a session ended. A session that ends by itself writes a Termination as JSON
// to its termination message and exits with status 0. Any other status means that the session
// crashed and must be restarted.
type Termination struct {
	// Reason is Idle, Completed or Failed if the exit status is 0. For any other exit status, it is
	// OOMKilled, Unresponsive or empty.
	Reason  string                       `json:"reason"`
	Message string                       `json:"message,omitempty"`
	Result  *v1alpha1.ConversationResult `json:"result,omitempty"`
}

// ParseTermination reads the termination message of a session that exited with status 0. An image
// with its own entry point may write any text. If the text is not a Termination, the session counts
// as Completed. The text is dropped, because it may contain a secret. reported is true if the
// session wrote a valid reason.
func ParseTermination(message string) (t Termination, reported bool) {
	var written struct {
		Termination
		Result json.RawMessage `json:"result"`
	}
	endings := []string{v1alpha1.ReasonIdle, v1alpha1.ReasonCompleted, v1alpha1.ReasonFailed}
	if err := json.Unmarshal([]byte(message), &written); err != nil || !slices.Contains(endings, written.Reason) {
		return Termination{Reason: v1alpha1.ReasonCompleted}, false
	}
	t = Termination{Reason: written.Reason, Message: cut(written.Message, maxText)}
	// An invalid result does not affect the reason.
	if result := new(v1alpha1.ConversationResult); len(written.Result) > 0 && json.Unmarshal(written.Result,
		result) == nil {
		t.Result = bounded(result)
	}
	return t, true
}

// Reasons why the kernel or the supervisor ended a process.
const (
	// OOMKilled means that the kernel killed the process for lack of memory. The kubelet uses the
	// same word in the status of a container.
	OOMKilled = "OOMKilled"
	// Unresponsive means that the supervisor ended the process because the process no longer
	// answered.
	Unresponsive = "Unresponsive"
)

// WhyEnded reads the termination message of a session that exited with a status other than 0. It
// returns OOMKilled or Unresponsive, or an empty string if the message contains neither reason.
func WhyEnded(message string) string {
	var t Termination
	if json.Unmarshal([]byte(message), &t) != nil || t.Reason != OOMKilled && t.Reason != Unresponsive {
		return ""
	}
	return t.Reason
}

var (
	commitForm = regexp.MustCompile(`^[0-9a-f]{7,64}$`)
	linkForm   = regexp.MustCompile(`^https?://[!#-;=?-\[\]-~]+$`)
	costForm   = regexp.MustCompile(`^([0-9]{1,9})(?:(\.[0-9]{1,12})[0-9]*)?$`)
)

// bounded returns a result that fits into a status: it truncates long texts and drops invalid
// values. It returns nil if nothing is left.
func bounded(result *v1alpha1.ConversationResult) *v1alpha1.ConversationResult {
	if result == nil {
		return nil
	}
	r := *result
	r.Summary = cut(printable(r.Summary), maxText)
	if !commitForm.MatchString(r.Commit) {
		r.Commit = ""
	}
	// A truncated name would name another branch, so drop the whole name.
	if len(r.Branch) > maxBranch || printable(r.Branch) != r.Branch || strings.ContainsAny(r.Branch, " \t\n") {
		r.Branch = ""
	}
	if len(r.PullRequest) > maxLink || !linkForm.MatchString(r.PullRequest) {
		r.PullRequest = ""
	}
	// Shorten the cost, because an exact sum of small prices may have very many digits.
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

// printable removes control characters and invalid bytes, which could disturb a user's terminal.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c != '\n' && c != '\t' && (unicode.IsControl(c) || c == unicode.ReplacementChar) {
			return -1
		}
		return c
	}, text)
}

// Encode returns the termination message for ParseTermination. It never exceeds the kubelet's
// limit.
func (t Termination) Encode() ([]byte, error) {
	t.Message, t.Result = cut(t.Message, maxText), bounded(t.Result)
	for {
		text, err := encode(t)
		if err != nil || len(text) <= maxTermination {
			return text, err
		}
		// JSON escapes can make the message and the summary six times as long. Halve the longer of
		// these texts and encode again.
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

// cut truncates a text to at most maxBytes, but not within a character.
func cut(text string, maxBytes int) string {
	if len(text) <= maxBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxBytes], "")
}
