package conversations

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestPagesOfTheListAreStableWhileConversationsChange(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	list := func(names ...string) (all []v1alpha1.Conversation) {
		for _, name := range names {
			all = append(all, v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: now}})
		}
		return all
	}
	first := page{limit: 2}.take(list("d", "b", "a", "c"))
	if got := first.Results[0].ConversationID + first.Results[1].ConversationID; got != "ab" {
		t.Fatalf("the first page is %s", got)
	}
	after, ok := parsePosition(*first.NextPageID)
	if !ok {
		t.Fatal("the page ID is refused")
	}
	// After the first page was read, its last conversation b was deleted, and the conversation aa
	// was created. In the list, aa comes before b, so the second page must not contain aa.
	second := page{limit: 2, after: after}.take(list("d", "a", "aa", "c"))
	if got := second.Results[0].ConversationID + second.Results[1].ConversationID; got != "cd" ||
		second.NextPageID != nil {
		t.Errorf("the second page is %s", got)
	}
}

func TestPagesContainEachConversationOnceAndTheNewestFirst(t *testing.T) {
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
			got := p.take(all)
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

// A user with very many conversations must find an old conversation that failed.
func TestTheSearchAndTheAttentionFilterCoverAllConversations(t *testing.T) {
	t.Parallel()
	const n = 10_000
	all := make([]v1alpha1.Conversation, n)
	now := time.Now()
	for i := range all {
		c := &all[i]
		c.Name, c.CreationTimestamp = fmt.Sprintf("c-%05d", i), metav1.NewTime(now.Add(-time.Duration(i)*time.Minute))
		c.Spec.InitialUserMsg = ptr.To(fmt.Sprintf("Fix the parser, part %d", i))
		c.Status.State, c.Status.Reason = v1alpha1.StateStopped, v1alpha1.ReasonSuspended
	}
	last := &all[n-1]
	last.Status.Reason = v1alpha1.ReasonFailed
	stalled := []metav1.Condition{{Type: v1alpha1.ConditionStalled, Status: metav1.ConditionTrue}}
	last.Status.Conditions, all[n-2].Status.Conditions = stalled, stalled
	last.Annotations = map[string]string{v1alpha1.AnnotationTitle: "Ünder the Sea" + strings.Repeat(".", 1<<18)}
	all[n-2].Status.State, all[n-2].Status.Reason = v1alpha1.StateStarting, v1alpha1.ReasonNotAllowed
	all[n-3].Status.State, all[n-3].Status.Reason = v1alpha1.StateRunning, v1alpha1.ReasonRunning
	for query, want := range map[string]string{
		"attention=true":                "c-09998 c-09999",
		"attention=true&status=STOPPED": "c-09999",
		"status=STARTING":               "c-09998",
		"status=RUNNING":                "c-09997",
		"query=%C3%BCNDER+the+sea":      "c-09999",
		"query=part+9123":               "c-09123",
		"query=part+123&limit=2":        "c-00123 c-01230",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		p, details := decodePage(values)
		if len(details) > 0 {
			t.Fatal(details)
		}
		var got []string
		for _, c := range p.take(all).Results {
			got = append(got, c.ConversationID)
			if c.NeedsAttention != (c.ConversationID >= "c-09998") {
				t.Errorf("%s needs attention: %t", c.ConversationID, c.NeedsAttention)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s lists %v, want %s", query, got, want)
		}
	}
}

func BenchmarkSearchOfTenThousandConversations(b *testing.B) {
	all := make([]v1alpha1.Conversation, 10_000)
	for i := range all {
		all[i].Name, all[i].Spec.InitialUserMsg = fmt.Sprint(i), ptr.To(strings.Repeat("Fix the parser ", 30))
	}
	for b.Loop() {
		if found := (page{limit: 20, search: "nothing"}).take(all).Results; len(found) > 0 {
			b.Fatal(found)
		}
	}
}

func TestADuplicateGetsTheFieldsOfTheOriginalConversation(t *testing.T) {
	t.Parallel()
	spec := v1alpha1.ConversationSpec{
		Repository: ptr.To("o/wrong"), SelectedBranch: ptr.To("main"), InitialUserMsg: ptr.To("Line one\nLine two"),
		Images: []v1alpha1.ConversationImage{{URL: ptr.To("https://example.com/a.png")},
			{ConfigMapKeyRef: &v1alpha1.ConfigMapKeyRef{Name: "a", Key: "b"}}},
		MCPConfig: &v1alpha1.MCPConfig{},
	}
	got := templateOf(&spec)
	if *got.Repository != "o/wrong" || *got.SelectedBranch != "main" || *got.InitialUserMsg != "Line one\nLine two" ||
		strings.Join(got.ImageURLs, " ") != "https://example.com/a.png" ||
		strings.Join(got.NotCopied, ", ") != "attached images, MCP servers" {
		t.Errorf("the copy is %+v", got)
	}
}

func TestTheTitleIsTheFirstLineOfTheMessage(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		" hello \nworld":         "hello",
		strings.Repeat("ä", 101): strings.Repeat("ä", 99) + "…",
		strings.Repeat("ä", 100): strings.Repeat("ä", 100),
	} {
		if got := truncate(firstLine(message)); got != want {
			t.Errorf("%q is %q", message, got)
		}
	}
}

func TestTheConversationListLinksToThePullRequest(t *testing.T) {
	t.Parallel()
	c := v1alpha1.Conversation{ObjectMeta: metav1.ObjectMeta{Name: "talk"}}
	if got := view(&c); got.PullRequest != nil || len(got.PRNumber) != 0 {
		t.Errorf("without a pull request: %v, %v", got.PullRequest, got.PRNumber)
	}
	for _, link := range []string{"https://github.com/a/b/pull/7", "https://gitlab.com/a/b/-/merge_requests/7",
		"https://bitbucket.org/a/b/pull-requests/7", "https://git.example.com/a/b/pulls/7"} {
		c.Status.Result = &v1alpha1.ConversationResult{PullRequest: link}
		if got := view(&c); got.PullRequest == nil || *got.PullRequest != link || len(got.PRNumber) != 1 ||
			got.PRNumber[0] != 7 {
			t.Errorf("%s: %v, %v", link, got.PullRequest, got.PRNumber)
		}
	}
}
