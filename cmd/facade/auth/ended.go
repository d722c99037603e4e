package auth

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// maxEnded bounds how many ended sign-ins are remembered of a user; who ends more within half a day
// has the oldest forgotten.
const maxEnded = 100

// HasEnded says whether a sign-in with this id is over before its time.
func HasEnded(settings *v1alpha1.UserSettings, id string) bool {
	for entry := range strings.SplitSeq(settings.Annotations[v1alpha1.AnnotationEndedSignIns], ",") {
		if ended, _, _ := strings.Cut(entry, ":"); ended == id {
			return true
		}
	}
	return false
}

// Ended is the annotation with one more sign-in that is over, and without those whose time is over
// anyway.
func Ended(settings *v1alpha1.UserSettings, shown Credential, now time.Time) string {
	entries := slices.DeleteFunc(strings.Split(settings.Annotations[v1alpha1.AnnotationEndedSignIns], ","),
		func(entry string) bool {
			_, text, _ := strings.Cut(entry, ":")
			expires, err := strconv.ParseInt(text, 10, 64)
			return err != nil || expires < now.Unix()
		})
	entries = append(entries, shown.ID+":"+strconv.FormatInt(shown.Expires.Unix(), 10))
	return strings.Join(entries[max(0, len(entries)-maxEnded):], ",")
}
