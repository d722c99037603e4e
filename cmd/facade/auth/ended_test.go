package auth

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestARevokedSignInIsStoredUntilItExpires(t *testing.T) {
	settings, now := &v1alpha1.UserSettings{}, time.Unix(1000, 0)
	end := func(id string, lasting time.Duration) {
		value := Ended(settings, Credential{ID: id, Expires: now.Add(lasting)}, now)
		settings.Annotations = map[string]string{v1alpha1.AnnotationEndedSignIns: value}
	}
	if HasEnded(settings, "a") || HasEnded(settings, "") && settings.Annotations != nil {
		t.Error("a sign-in counts as revoked")
	}
	end("a", time.Minute)
	end("b", time.Hour)
	if !HasEnded(settings, "a") || !HasEnded(settings, "b") || HasEnded(settings, "c") {
		t.Errorf("ended: %v", settings.Annotations)
	}
	now = now.Add(2 * time.Minute)
	end("c", time.Hour)
	if HasEnded(settings, "a") || !HasEnded(settings, "b") || !HasEnded(settings, "c") {
		t.Errorf("ended: %v", settings.Annotations)
	}
	for i := range 2 * maxEnded {
		end(fmt.Sprint("many", i), time.Hour)
	}
	if got := strings.Count(settings.Annotations[v1alpha1.AnnotationEndedSignIns], ","); got != maxEnded-1 {
		t.Errorf("%d sign-ins are stored", got+1)
	}
}
