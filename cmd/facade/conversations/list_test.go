package conversations

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestAPageStaysWhereItIsWhenOthersComeAndGo(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	list := func(names ...string) (all []v1alpha1.Conversation) {
		for _, name := range names {
			all = append(all, v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: now}})
		}
		return all
	}
	first := page{limit: 2}.of(list("d", "b", "a", "c"))
	if got := first.Results[0].ConversationID + first.Results[1].ConversationID; got != "ab" {
		t.Fatalf("the first page is %s", got)
	}
	after, ok := parsePosition(*first.NextPageID)
	if !ok {
		t.Fatal("the page's id is not understood")
	}
	// b, where the page ended, is gone; aa came before it.
	second := page{limit: 2, after: after}.of(list("d", "a", "aa", "c"))
	if got := second.Results[0].ConversationID + second.Results[1].ConversationID; got != "cd" || second.NextPageID != nil {
		t.Errorf("the second page is %s", got)
	}
}

func TestATitleIsTheFirstLine(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		" hello \nworld":         "hello",
		strings.Repeat("ä", 101): strings.Repeat("ä", 99) + "…",
		strings.Repeat("ä", 100): strings.Repeat("ä", 100),
	} {
		if got := title(message); got != want {
			t.Errorf("%q is %q", message, got)
		}
	}
}
