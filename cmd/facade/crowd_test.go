package main

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
)

const crowd = 200

func atOnce(do func(i int)) {
	var group sync.WaitGroup
	start := make(chan struct{})
	for i := range crowd {
		group.Go(func() {
			<-start
			do(i)
		})
	}
	close(start)
	group.Wait()
}

// insist repeats a request as long as the response has a Retry-After header. A slow machine may
// cause such responses.
func (p *person) insist(path, body string) (reply, error) {
	for {
		r, err := p.send("POST", path, body)
		later := r.code == http.StatusServiceUnavailable || r.code == http.StatusTooManyRequests
		if err != nil || !later || r.header.Get("Retry-After") == "" {
			return r, err
		}
	}
}

func TestConcurrentSettingsWritesLoseNothing(t *testing.T) {
	ada := newPerson(t, "ada")
	second := ownFacade(t, "--user-rate=0")
	other := ada.atFacade(t, second.URL)
	atOnce(func(i int) {
		// Each request stores either a plain field, or a secret and perhaps the model's key.
		body := fmt.Sprintf(`{"secrets_store": {"custom_secrets": {"S%d": {"secret": "v%d"}}}, "llm_api_key": "k%d"}`, i%50,
			i%50, i)
		switch i % 5 {
		case 1:
			body = `{"language": "en"}`
		case 2:
			body = `{"email": "ada@example.com"}`
		case 3:
			body = `{"git_user_name": "Ada"}`
		case 4:
			body = fmt.Sprintf(`{"secrets_store": {"custom_secrets": {"S%d": {"secret": "v%d"}}}}`, i%50, i%50)
		}
		p := []*person{ada, other}[i%2]
		if r, err := p.insist("/api/settings", body); err != nil || r.code != http.StatusOK {
			t.Errorf("%d: %d %s %v", i, r.code, r.body, err)
		}
	})
	spec := ada.settings(t).Spec
	if spec.Language == nil || spec.Email == nil || spec.GitUserName == nil || spec.LLMAPIKeyRef == nil {
		t.Errorf("a field is missing: %s", jsonOf(t, spec))
	}
	stored := map[string]string{}
	for _, s := range spec.SecretsStore.CustomSecrets {
		stored[s.Name] = ada.secret(t, s.SecretRef.Name)
	}
	for i := range crowd {
		if i%5 == 0 || i%5 == 4 {
			if name := fmt.Sprintf("S%d", i%50); stored[name] != fmt.Sprintf("v%d", i%50) {
				t.Errorf("%s is %q", name, stored[name])
			}
		}
	}
}

func TestConcurrentCreationsOfOneIDCreateOneConversation(t *testing.T) {
	ada := newcomer(t)
	var mu sync.Mutex
	codes := map[string]map[int]int{}
	atOnce(func(i int) {
		// The requests use ten IDs, and two different messages for each ID.
		id := fmt.Sprintf("talk-%d", i%10)
		body := fmt.Sprintf(`{"conversation_id": %q, "initial_user_msg": "hello %d", "mcp_config": {"sse_servers": `+
			`[{"url": "https://a.example.com", "api_key": "k%d"}]}}`, id, i/10%2, i)
		r, err := ada.insist("/api/conversations", body)
		if err != nil || r.code != http.StatusOK && r.code != http.StatusConflict {
			t.Errorf("%d: %d %s %v", i, r.code, r.body, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if codes[id] == nil {
			codes[id] = map[int]int{}
		}
		codes[id][r.code]++
	})
	for id, counts := range codes {
		if counts[200] != 10 || counts[409] != 10 {
			t.Errorf("%s: %v, want half joined and half refused", id, counts)
		}
		if c := ada.conversation(t, id); c.Annotations[v1alpha1.AnnotationIncomplete] != "" {
			t.Errorf("%s is incomplete", id)
		}
	}
	var list v1alpha1.ConversationList
	if err := suite.Client.List(t.Context(), &list, client.InNamespace(ada.namespace)); err != nil ||
		len(list.Items) != 10 {
		t.Errorf("%d conversations (%v), want 10", len(list.Items), err)
	}
}

func TestARetryCompletesACreationAfterTheFacadeIsKilled(t *testing.T) {
	// The test needs an incomplete conversation. If the facade is killed between two creations, no
	// conversation is incomplete, and the test tries again.
	for range 5 {
		if ada, all, half := killInTheMiddle(t); half > 0 {
			t.Logf("the facade died with %d conversations of %d created, %d of them incomplete", all, crowd, half)
			completeAll(t, ada)
			return
		}
	}
	t.Fatal("no kill left an incomplete conversation, so the test checked nothing")
}

func bodyWithKeys(i int) string {
	more := `"replay_json": "[]"`
	if i%2 == 1 {
		more = fmt.Sprintf(`"image_urls": ["data:image/png,one-%d", "data:image/png,two-%d"]`, i, i)
	}
	return fmt.Sprintf(
		`{"conversation_id": "talk-%d", %s, "mcp_config": {
			"sse_servers": [{"url": "https://a.example.com", "api_key": "k%d"}],
		"stdio_servers": [{"name": "s", "command": "c", "env": {"A": "a%d", "B": "b"}}]}}`, i, more, i, i)
}

// killInTheMiddle kills a facade during many creations, after its first responses. It returns the
// number of all conversations, and the number of incomplete conversations (half).
func killInTheMiddle(t *testing.T) (ada *person, all, half int) {
	t.Helper()
	ada = newcomer(t)
	doomed, err := startFacade(suite.Env, "--user-rate=0")
	if err != nil {
		t.Fatal(err)
	}
	there := ada.atFacade(t, doomed.URL)
	var answered atomic.Int32
	var killed sync.Once
	atOnce(func(i int) {
		r, err := there.send("POST", "/api/conversations", bodyWithKeys(i))
		if err == nil && r.code == http.StatusOK && answered.Add(1) > crowd/20 {
			killed.Do(doomed.Kill)
		}
	})
	killed.Do(doomed.Kill)
	var list v1alpha1.ConversationList
	if err := suite.Client.List(t.Context(), &list, client.InNamespace(ada.namespace)); err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Items {
		if c.Annotations[v1alpha1.AnnotationIncomplete] != "" {
			half++
		}
	}
	return ada, len(list.Items), half
}

func completeAll(t *testing.T, ada *person) {
	t.Helper()
	for i := range crowd {
		ada.post(t, "/api/conversations", bodyWithKeys(i)).wants(t, 200)
		c := ada.conversation(t, fmt.Sprintf("talk-%d", i))
		if c.Annotations[v1alpha1.AnnotationIncomplete] != "" || c.Spec.TTLAfterStopped != nil {
			t.Errorf("talk-%d is incomplete", i)
		}
		if got := ada.secret(t, c.Spec.MCPConfig.SSEServers[0].APIKeyRef.Name); got != fmt.Sprintf("k%d", i) {
			t.Errorf("talk-%d has the key %q", i, got)
		}
		if i%2 == 1 {
			if _, data := ada.image(t, c, 1); string(data) != fmt.Sprintf("two-%d", i) {
				t.Errorf("talk-%d has the image %q", i, data)
			}
		}
	}
}
