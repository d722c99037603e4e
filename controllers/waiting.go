package controllers

import (
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxWaitingWords bounds what a status repeats of a kubelet's message.
const maxWaitingWords = 256

// changing is what differs from one try to the next: identities, times and durations. A status that
// had them would be written with each.
var changing = regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{12,` +
	`}\b|\b\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\b(\d+(\.\d+)?(ns|µs|ms|s|m|h))+\b`)

// whyWaiting is the reason for which a container waits, and what the kubelet says of it.
func whyWaiting(image string, waiting *corev1.ContainerStateWaiting) string {
	words := ""
	switch waiting.Reason {
	case "ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		words = pullProblem(image, waiting.Message)
	default: // the node's own words
		words = ownWords(waiting.Message)
	}
	if words == "" {
		return waiting.Reason
	}
	return waiting.Reason + ": " + words
}

// pullProblems are what a message tells of an image that does not come, by what it holds; the first
// counts.
var pullProblems = []struct {
	signs *regexp.Regexp
	words string
}{
	{regexp.MustCompile(`(?i)no space left`), "the node has no room for it"},
	{regexp.MustCompile(`(?i)no match for platform|exec format`), "it is for another kind of machine"},
	{regexp.MustCompile(`(?i)unauthori[sz]ed|forbidden|denied|authentication required|authorization failed|\b40[13]\b`),
		"the registry does not let the node have it"},
	{regexp.MustCompile(`(?i)not found|manifest unknown|name unknown`), "the registry has no such image"},
	{regexp.MustCompile(`(?i)x509|certificate|tls: |server gave HTTP response`), "the node does not trust the registry"},
	{regexp.MustCompile(`(?i)\b5[0-3]\d\b|internal server error|bad gateway|service unavailable`),
		"the registry has an error of its own"},
	{regexp.MustCompile(`(?i)no such host|dial tcp|connection (refused|reset)|timeout|deadline exceeded|no route`),
		"the registry cannot be reached"},
	{regexp.MustCompile(`(?i)too ?many ?requests|rate limit|\b429\b`), "the registry has had too many requests"},
}

// places are the words of a message that say where something is: URLs, paths and images, hosts and
// their ports, and the tag that CRI-O names by itself. A user may have chosen them, so they may
// hold any word. The last part of a host is in small letters, unlike that of Client.Timeout.
var places = regexp.MustCompile(`\S*/\S*|\bmanifest \S+ in\b|(\b[\w-]+(\.[\w-]+)*\.[a-z0-9-]+\b|\])(:\d+)?`)

// pullProblem says why an image does not come. The message is not repeated: it holds what was
// answered at an address that a user may have chosen.
func pullProblem(image, message string) string {
	message = strings.ReplaceAll(message, strconv.Quote(image), " ")
	message = places.ReplaceAllString(message, " ")
	for _, problem := range pullProblems {
		if problem.signs.MatchString(message) {
			return problem.words
		}
	}
	return ""
}

// ownWords are what a node says, the same at each try, and short. It begins with what it wanted to
// do, and ends with why it could not; so the end is what stays.
func ownWords(message string) string {
	words := changing.ReplaceAllString(strings.Join(strings.Fields(message), " "), "…")
	if len(words) <= maxWaitingWords {
		return words
	}
	words = strings.ToValidUTF8(words[len(words)-maxWaitingWords:], "")
	if _, rest, found := strings.Cut(words, " "); found {
		words = rest
	}
	return "… " + words
}
