package controllers

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxWaitingWords bounds what a status repeats of a kubelet's message.
const maxWaitingWords = 256

var (
	// userOfURL and queryOfURL are what may let somebody in: a registry may send a kubelet to where
	// its files are with a signature.
	userOfURL  = regexp.MustCompile(`(://)[^/\s"'@]*@`)
	queryOfURL = regexp.MustCompile(`(://[^\s"'?]*)\?[^\s"']*`)
	// changing is what differs from one try to the next: the port that is asked from, identities,
	// times and durations. A status that had them would be written with each.
	changing = regexp.MustCompile(`:\d+->|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{12,}\b|\b\d{4}-\d\d-\d\d[T ][\d:.]+Z?|\b(\d+(\.\d+)?(ns|µs|ms|s|m|h))+\b`)
)

// whyWaiting is the reason for which a container waits, and what the kubelet says of it: without
// what lets somebody in, the same at each try, and short. What it says begins with what it wanted
// to do, and ends with why it could not; so the end is what stays.
func whyWaiting(waiting *corev1.ContainerStateWaiting) string {
	words := strings.Join(strings.Fields(waiting.Message), " ")
	words = queryOfURL.ReplaceAllString(userOfURL.ReplaceAllString(words, "$1"), "$1")
	words = changing.ReplaceAllString(words, "…")
	if len(words) > maxWaitingWords {
		words = strings.ToValidUTF8(words[len(words)-maxWaitingWords:], "")
		if _, rest, found := strings.Cut(words, " "); found {
			words = rest
		}
		words = "… " + words
	}
	if words == "" {
		return waiting.Reason
	}
	return waiting.Reason + ": " + words
}
