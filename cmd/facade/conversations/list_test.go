package conversations

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestPagesAreStableWhileConversationsChange(t *testing.T) {
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
		t.Fatal("the page ID is refused")
	}
	// b, the end of the page, was deleted; aa was created before it.
	second := page{limit: 2, after: after}.of(list("d", "a", "aa", "c"))
	if got := second.Results[0].ConversationID + second.Results[1].ConversationID; got != "cd" ||
		second.NextPageID != nil {
		t.Errorf("the second page is %s", got)
	}
}

func TestPagesListEachConversationOnceNewestFirst(t *testing.T) {
	t.Parallel()
	const n = 50
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, limit := range []int{1, 7, n - 1, n, n + 1} {
		all := make([]v1alpha1.Conversation, n)
		for i, at := range rand.New(rand.NewPCG(1, uint64(limit))).Perm(n) {
			all[at].Name, all[at].CreationTimestamp = fmt.Sprintf("c-%02d", i),
				metav1.NewTime(noon.Add(-time.Duration(i/3)*time.Second))
		}
		seen := 0
		for p := (page{limit: limit}); ; {
			got := p.of(all)
			for _, c := range got.Results {
				if want := fmt.Sprintf("c-%02d", seen); c.ConversationID != want {
					t.Fatalf("pages of %d: %s, want %s", limit, c.ConversationID, want)
				}
				seen++
			}
			if got.NextPageID == nil {
				break
			}
			if len(got.Results) != limit {
				t.Errorf("a page with limit %d has %d", limit, len(got.Results))
			}
			p.after, _ = parsePosition(*got.NextPageID)
		}
		if seen != n {
			t.Errorf("pages with limit %d have %d in total", limit, seen)
		}
	}
}

func TestTheTitleIsTheFirstLine(t *testing.T) {
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
