package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// person is a user with settings and a session key.
type person struct {
	url             string
	namespace, name string
	key             string
	// headers are sent with each request, as alternating names and values.
	headers []string
}

func stranger() *person { return &person{url: suite.facade.URL} }

func newPerson(t *testing.T, name string) *person {
	t.Helper()
	return newPersonIn(t, suite.Namespace(t, nil), name)
}

// newPersonIn creates a UserSettings object and waits until the facade knows its session key.
func newPersonIn(t *testing.T, namespace, name string) *person {
	t.Helper()
	create(t, &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	p := &person{url: suite.facade.URL, namespace: namespace, name: name}
	p.learnKey(t)
	return p
}

// newcomer returns a person with complete settings.
func newcomer(t *testing.T) *person {
	t.Helper()
	p := newPerson(t, "ada")
	p.post(t, "/api/settings", `{"llm_model": "ollama/small"}`).wants(t, 200)
	return p
}

func (p *person) learnKey(t *testing.T) {
	t.Helper()
	await(t, func() error {
		secret := &corev1.Secret{}
		err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace,
			Name: v1alpha1.SessionKeySecretName(p.name)}, secret)
		if err != nil {
			return err
		}
		p.key = string(secret.Data[v1alpha1.SessionKeySecretKey])
		if reply := p.get(t, "/api/conversations"); reply.code != http.StatusOK {
			return fmt.Errorf("the facade answers %d", reply.code)
		}
		return nil
	})
}

type reply struct {
	code   int
	header http.Header
	body   string
}

func (p *person) get(t *testing.T, path string) reply {
	t.Helper()
	return p.do(t, "GET", path, "")
}

func (p *person) post(t *testing.T, path, body string, headers ...string) reply {
	t.Helper()
	return p.do(t, "POST", path, body, headers...)
}

// do sends a request; headers are alternating names and values. openapi.yaml must document the
// response.
func (p *person) do(t *testing.T, method, path, body string, headers ...string) reply {
	t.Helper()
	r, err := p.send(method, path, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (p *person) send(method, path, body string, headers ...string) (reply, error) {
	request, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if p.key != "" {
		request.Header.Set(rest.KeyHeader, p.key)
	}
	headers = append(slices.Clone(p.headers), headers...)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return reply{}, err
	}
	r := reply{code: answer.StatusCode, header: answer.Header, body: string(data)}
	if err := checkContract(request, r.code, r.header, r.body); err != nil {
		return r, fmt.Errorf("%s %s answered %d %s, which is not in openapi.yaml: %w", method, path, r.code, r.body, err)
	}
	return r, nil
}

func (r reply) wants(t *testing.T, code int) reply {
	t.Helper()
	if r.code != code {
		t.Fatalf("answered %d %s, want %d", r.code, r.body, code)
	}
	return r
}

// says checks that the body equals this JSON.
func (r reply) says(t *testing.T, want string) reply {
	t.Helper()
	var got, wanted any
	if err := json.Unmarshal([]byte(r.body), &got); err != nil {
		t.Fatalf("invalid JSON: %s", r.body)
	}
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, wanted) {
		t.Fatalf("answered %s, want %s", r.body, want)
	}
	return r
}

// complains checks that the details have exactly these locations and types, such as
// body.max_iterations: int_parsing.
func (r reply) complains(t *testing.T, want ...string) reply {
	t.Helper()
	var body struct{ Detail []rest.Detail }
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("no details: %s", r.body)
	}
	got := map[string]bool{}
	for _, d := range body.Detail {
		var steps []string
		for _, step := range d.Loc {
			steps = append(steps, fmt.Sprint(step))
		}
		got[strings.Join(steps, ".")+": "+d.Type] = true
	}
	for _, w := range want {
		if !got[w] {
			t.Errorf("error %q is missing in %s", w, r.body)
		}
		delete(got, w)
	}
	if len(got) > 0 {
		t.Errorf("unexpected errors %v in %s", slices.Sorted(maps.Keys(got)), r.body)
	}
	return r
}

// lacks checks that the body contains none of the values.
func (r reply) lacks(t *testing.T, values ...string) reply {
	t.Helper()
	for _, value := range values {
		if strings.Contains(r.body, value) {
			t.Errorf("%q is in %s", value, r.body)
		}
	}
	return r
}

func (r reply) field(t *testing.T, name string) any {
	t.Helper()
	var body map[string]any
	if err := json.Unmarshal([]byte(r.body), &body); err != nil {
		t.Fatalf("not a JSON object: %s", r.body)
	}
	value, found := body[name]
	if !found {
		t.Fatalf("no %s in %s", name, r.body)
	}
	return value
}

func (p *person) settings(t *testing.T) *v1alpha1.UserSettings {
	t.Helper()
	settings := &v1alpha1.UserSettings{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: p.name}, settings); err != nil {
		t.Fatal(err)
	}
	return settings
}

func (p *person) conversation(t *testing.T, id string) *v1alpha1.Conversation {
	t.Helper()
	c := &v1alpha1.Conversation{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: id}, c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (p *person) secret(t *testing.T, name string) string {
	t.Helper()
	secret := &corev1.Secret{}
	if err := suite.Client.Get(t.Context(), client.ObjectKey{Namespace: p.namespace, Name: name}, secret); err != nil {
		t.Fatal(err)
	}
	if secret.Type != v1alpha1.SecretTypeUserKey {
		t.Errorf("the Secret %s is of type %s", name, secret.Type)
	}
	return string(secret.Data[v1alpha1.ManagedSecretKey])
}

func jsonOf(t *testing.T, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
