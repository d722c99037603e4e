package auth

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// maxEnded is the maximum number of revoked sign-ins stored per user. The oldest are dropped first.
const maxEnded = 100

// HasEnded reports whether a sign-in was revoked before it expired.
func HasEnded(settings *v1alpha1.UserSettings, id string) bool {
	for entry := range strings.SplitSeq(settings.Annotations[v1alpha1.AnnotationEndedSignIns], ",") {
		if ended, _, _ := strings.Cut(entry, ":"); ended == id {
			return true
		}
	}
	return false
}

// Ended returns the new value of AnnotationEndedSignIns. It adds one revoked sign-in and drops
// expired sign-ins.
func Ended(settings *v1alpha1.UserSettings, credential Credential, now time.Time) string {
	entries := slices.DeleteFunc(strings.Split(settings.Annotations[v1alpha1.AnnotationEndedSignIns], ","),
		func(entry string) bool {
			_, text, _ := strings.Cut(entry, ":")
			expires, err := strconv.ParseInt(text, 10, 64)
			return err != nil || expires < now.Unix()
		})
	entries = append(entries, credential.ID+":"+strconv.FormatInt(credential.Expires.Unix(), 10))
	return strings.Join(entries[max(0, len(entries)-maxEnded):], ",")
}
