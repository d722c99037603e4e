package onboarding

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/internal/identity"
	"github.com/parley-dev/parley/hack/test/openid"
	"github.com/parley-dev/parley/hack/test/testenv"
)

var env *testenv.Env

func TestMain(m *testing.M) { testenv.Main(m, func(e *testenv.Env) { env = e }) }

// fixture is an Onboarder with its own ConfigMap and issuer, and two teams' namespaces.
type fixture struct {
	*testing.T
	*Onboarder
	issuer *openid.Issuer
	events *events.FakeRecorder
	red    string
	blue   string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, issuer: openid.Start(t), events: events.NewFakeRecorder(100)}
	provider, err := identity.NewProvider(identity.Options{Issuer: f.issuer.URL, ClientID: openid.ClientID,
		UsernameClaim: "email", UsernamePrefix: "oidc:", GroupsClaim: "groups", GroupsPrefix: "oidc:"})
	f.must(err)
	f.red, f.blue = env.Namespace(t, nil), env.Namespace(t, nil)
	f.Onboarder = newOnboarder(env.Client, env.Client, f.events, provider,
		Options{Namespace: env.Namespace(t, nil), ConfigMap: v1alpha1.OnboardingName})
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// configure replaces the text of the ConfigMap. RED and BLUE stand for the namespaces of the teams.
func (f *fixture) configure(text string) {
	f.Helper()
	text = strings.NewReplacer("RED", f.red, "BLUE", f.blue).Replace(text)
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.options.Namespace,
		Name: f.options.ConfigMap}}
	_ = env.Client.Delete(f.Context(), configMap) // the ConfigMap may not exist
	configMap.ResourceVersion, configMap.Data = "", map[string]string{configKey: text}
	f.must(env.Client.Create(f.Context(), configMap))
}

// signIn onboards a person, and returns the person's UserSettings in sorted order.
func (f *fixture) signIn(email string, groups ...string) (*Answer, []v1alpha1.UserSettings) {
	f.Helper()
	person, err := f.provider.Verify(f.Context(), f.issuer.Token(email, groups...))
	f.must(err)
	answer, err := f.Onboard(f.Context(), person)
	f.must(err)
	var settings []v1alpha1.UserSettings
	for _, each := range answer.Settings {
		found := v1alpha1.UserSettings{}
		f.must(env.Client.Get(f.Context(), client.ObjectKey{Namespace: each.Namespace, Name: each.Name}, &found))
		settings = append(settings, found)
	}
	return answer, settings
}

func (f *fixture) count(namespace string) int {
	f.Helper()
	var list v1alpha1.UserSettingsList
	f.must(env.Client.List(f.Context(), &list, client.InNamespace(namespace)))
	return len(list.Items)
}

// reported returns the events since the last call.
func (f *fixture) reported() (notes []string) {
	for len(f.events.Events) > 0 {
		notes = append(notes, <-f.events.Events)
	}
	return notes
}

func (f *fixture) expectReport(text string) {
	f.Helper()
	if notes := f.reported(); !slices.ContainsFunc(notes, func(n string) bool {
		return strings.HasPrefix(n, "Warning OnboardingFailed ") && strings.Contains(n, text)
	}) {
		f.Errorf("no event contains %q: %q", text, notes)
	}
}

func expectOnly(t *testing.T, problems []string, text string) {
	t.Helper()
	if len(problems) != 1 || !strings.Contains(problems[0], text) {
		t.Errorf("the problems are %q, want one with %q", problems, text)
	}
}

func ownerOf(s *v1alpha1.UserSettings) string {
	if s.Spec.Owner == nil || s.Spec.Owner.Group == nil {
		return ""
	}
	return fmt.Sprintf("%s of %s", s.Spec.Owner.Username, *s.Spec.Owner.Group)
}
