package onboarding

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/testenv"
)

const twoTeams = `
groups:
- {group: "oidc:red", namespace: RED, sessionClassName: small, inheritFrom: team}
- {group: "oidc:blue", namespace: BLUE}
`

func (f *fixture) makeTeam() {
	f.Helper()
	f.must(client.IgnoreAlreadyExists(env.Client.Create(f.Context(),
		&v1alpha1.SessionClass{ObjectMeta: metav1.ObjectMeta{Name: "small"}})))
	f.must(env.Client.Create(f.Context(),
		&v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: f.red, Name: "team"}}))
}

func TestTheFirstSignInCreatesSettingsForEachGroup(t *testing.T) {
	f := newFixture(t)
	f.makeTeam()
	f.configure(twoTeams)
	answer, settings := f.signIn("ada@example.com", "red", "blue", "red", "unknown")
	if len(settings) != 2 || len(answer.Problems) > 0 {
		t.Fatalf("ada got %+v", answer)
	}
	blue, red := &settings[0], &settings[1]
	if red.Namespace != f.red || ownerOf(red) != "oidc:ada@example.com of oidc:red" ||
		ptr.Deref(red.Spec.SessionClassName, "") != "small" || ptr.Deref(red.Spec.InheritFrom, "") != "team" ||
		ptr.Deref(red.Spec.Email, "") != "ada@example.com" || !ptr.Deref(red.Spec.EmailVerified, false) {
		t.Errorf("the red settings are %+v", red.Spec)
	}
	if blue.Namespace != f.blue || ownerOf(blue) != "oidc:ada@example.com of oidc:blue" ||
		blue.Spec.SessionClassName != nil || blue.Spec.InheritFrom != nil {
		t.Errorf("the blue settings are %+v", blue.Spec)
	}
	if !strings.HasPrefix(red.Name, "ada-example-com-") {
		t.Errorf("the name of the settings is %s", red.Name)
	}

	t.Run("a later sign-in changes nothing", func(t *testing.T) {
		before := red.DeepCopy()
		before.Spec.Language = ptr.To("de")
		f.must(env.Client.Update(t.Context(), before))
		_, again := f.signIn("ada@example.com", "red", "blue")
		if len(again) != 2 || again[1].UID != red.UID || again[1].ResourceVersion != before.ResourceVersion {
			t.Errorf("the settings were written: %+v", again)
		}
	})
	t.Run("another group gives nothing", func(t *testing.T) {
		if answer, _ := f.signIn("eve@example.com", "green", "RED", "oidc:red"); len(answer.Settings) > 0 {
			t.Errorf("eve got %+v", answer)
		}
	})
	t.Run("deleted settings are created again", func(t *testing.T) {
		f.must(env.Client.Delete(t.Context(), red.DeepCopy()))
		if _, again := f.signIn("ada@example.com", "red"); len(again) != 1 || again[0].UID == red.UID {
			t.Errorf("the settings after the deletion are %+v", again)
		}
	})
	t.Run("a changed ConfigMap applies to the next sign-in", func(t *testing.T) {
		f.configure(`groups: [{group: "oidc:green", namespace: BLUE}]`)
		if _, settings := f.signIn("eve@example.com", "green"); len(settings) != 1 {
			t.Errorf("eve got %+v", settings)
		}
		if answer, _ := f.signIn("bob@example.com", "red"); len(answer.Settings) > 0 {
			t.Errorf("bob got %+v", answer)
		}
	})
}

func TestNobodyIsOnboardedWithoutTheConfigMap(t *testing.T) {
	f := newFixture(t)
	if answer, _ := f.signIn("ada@example.com", "red"); len(answer.Settings)+len(answer.Problems) > 0 {
		t.Errorf("ada got %+v", answer)
	}
}

func TestABadEntryIsReportedAndSkipped(t *testing.T) {
	f := newFixture(t)
	f.makeTeam()
	for name, tc := range map[string]struct{ entry, want string }{
		"an unknown field":       {`{group: "oidc:red", namespace: RED, class: small}`, `unknown field "class"`},
		"a wrong type":           {`{group: "oidc:red", namespace: 7}`, "namespace"},
		"no namespace":           {`{group: "oidc:red"}`, "namespace:"},
		"an invalid namespace":   {`{group: "oidc:red", namespace: ../x}`, "namespace:"},
		"a missing namespace":    {`{group: "oidc:red", namespace: missing}`, "the namespace does not exist"},
		"Parley's own namespace": {`{group: "oidc:red", namespace: ` + f.options.Namespace + `}`, "Parley itself"},
		"a missing class":        {`{group: "oidc:red", namespace: RED, sessionClassName: none}`, "sessionClassName: none"},
		"an invalid class":       {`{group: "oidc:red", namespace: RED, sessionClassName: "a b"}`, "sessionClassName:"},
		"missing team settings":  {`{group: "oidc:red", namespace: RED, inheritFrom: missing}`, "inheritFrom: missing"},
		"invalid team settings":  {`{group: "oidc:red", namespace: RED, inheritFrom: UP}`, "inheritFrom:"},
	} {
		t.Run(name, func(t *testing.T) {
			f.configure("groups:\n- " + tc.entry + "\n- {group: \"oidc:red\", namespace: BLUE}\n")
			answer, settings := f.signIn("ada@example.com", "red")
			if len(settings) != 1 || settings[0].Namespace != f.blue {
				t.Errorf("the other entry gave %+v", settings)
			}
			expectOnly(t, answer.Problems, tc.want)
			f.expectReport(tc.want)
		})
	}
	if got := f.count(f.red); got != 1 { // the settings of the team
		t.Errorf("%d UserSettings are in the namespace of the bad entries", got)
	}
}

func TestBadEntriesOfOtherGroupsAreReportedToTheAdministratorOnly(t *testing.T) {
	f := newFixture(t)
	for name, tc := range map[string]struct{ text, want string }{
		"an entry without a group":    {"groups: [{namespace: RED}, GOOD]", "groups[0]: group:"},
		"an entry without a prefix":   {"groups: [{group: red, namespace: RED}, GOOD]", "groups[0]: group:"},
		"an entry of a system group":  {`groups: [{group: "system:masters", namespace: RED}, GOOD]`, "groups[0]: group:"},
		"an entry that is no object":  {"groups: [7, GOOD]", "groups[0]:"},
		"an unknown field beside it":  {"defaults: {}\ngroups: [GOOD]", `unknown field "defaults"`},
		"an entry for the same group": {"groups: [GOOD, {group: \"oidc:red\", namespace: RED, x: 1}]", "groups[1]:"},
	} {
		t.Run(name, func(t *testing.T) {
			f.configure(strings.Replace(tc.text, "GOOD", `{group: "oidc:blue", namespace: BLUE}`, 1))
			if answer, settings := f.signIn("ada@example.com", "blue"); len(settings) != 1 || len(answer.Problems) > 0 {
				t.Errorf("ada got %+v", answer)
			}
			f.expectReport(tc.want)
		})
	}
	for name, text := range map[string]string{"text that is no YAML": "groups: [", "a list that is none": "groups: red",
		"a key that occurs twice": "groups: []\ngroups: []"} {
		t.Run(name, func(t *testing.T) {
			f.configure(text)
			if answer, _ := f.signIn("ada@example.com", "blue"); len(answer.Settings) > 0 {
				t.Errorf("ada got %+v", answer)
			}
			if len(f.reported()) == 0 {
				t.Error("no event reports the problem")
			}
		})
	}
}

func TestARepeatedProblemIsReportedOneTime(t *testing.T) {
	f := newFixture(t)
	f.configure(`groups: [{group: "oidc:red", namespace: missing}]`)
	for range 5 {
		answer, _ := f.signIn("ada@example.com", "red")
		expectOnly(t, answer.Problems, "the namespace does not exist")
	}
	if notes := f.reported(); len(notes) != 1 {
		t.Errorf("the events are %q", notes)
	}
}

func TestSettingsWithAnotherOwnerAreNeverTakenOver(t *testing.T) {
	f := newFixture(t)
	f.configure(`groups: [{group: "oidc:blue", namespace: BLUE}]`)
	for name, owner := range map[string]*v1alpha1.SettingsOwner{
		"no owner":      nil,
		"another owner": {Username: "oidc:eve@example.com", Group: ptr.To("oidc:blue")},
		"another group": {Username: "oidc:ada@example.com", Group: ptr.To("oidc:red")},
	} {
		t.Run(name, func(t *testing.T) {
			squatter := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: f.blue,
				Name: settingsName("oidc:ada@example.com", "oidc:", "oidc:blue")},
				Spec: v1alpha1.UserSettingsSpec{Owner: owner}}
			f.must(env.Client.Create(t.Context(), squatter))
			answer, settings := f.signIn("ada@example.com", "blue")
			if len(settings) > 0 {
				t.Errorf("ada got %+v", settings)
			}
			expectOnly(t, answer.Problems, "have another owner")
			version := squatter.ResourceVersion
			f.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(squatter), squatter))
			if squatter.ResourceVersion != version {
				t.Error("the settings of another owner were written")
			}
			f.must(env.Client.Delete(t.Context(), squatter))
		})
	}
}

// In this test a policy refuses the settings, as the webhook would.
func TestOnlyAdministratorsSeeWhySettingsAreRefused(t *testing.T) {
	f := newFixture(t)
	f.configure(twoTeams)
	f.makeTeam()
	const secret = "the internal reason"
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "refuse-" + f.red},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{"CREATE"},
					Rule: admissionv1.Rule{APIGroups: []string{"parley.dev"}, APIVersions: []string{"*"},
						Resources: []string{"usersettings"}}}}}},
			Validations: []admissionv1.Validation{{Expression: "object.metadata.namespace != '" + f.red + "'",
				Message: secret}}}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: policy.ObjectMeta,
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: policy.Name,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}}
	f.must(env.Client.Create(t.Context(), policy))
	f.must(env.Client.Create(t.Context(), binding))
	t.Cleanup(func() {
		_ = env.Client.Delete(context.Background(), policy)
		_ = env.Client.Delete(context.Background(), binding)
	})
	probe := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: f.red, Name: "probe"}}
	testenv.Await(t, func() error {
		if env.Client.Create(t.Context(), probe.DeepCopy(), client.DryRunAll) == nil {
			return errors.New("the policy is not enforced")
		}
		return nil
	})
	answer, settings := f.signIn("ada@example.com", "red", "blue")
	if len(settings) != 1 || settings[0].Namespace != f.blue {
		t.Errorf("the other entry gave %+v", settings)
	}
	expectOnly(t, answer.Problems, "the cluster refused the UserSettings")
	if strings.Contains(answer.Problems[0], secret) {
		t.Error("the person learns the reason of the refusal")
	}
	f.expectReport(secret)
}

func TestConcurrentSignInsOfAPersonCreateOneObject(t *testing.T) {
	f := newFixture(t)
	f.configure(`groups: [{group: "oidc:blue", namespace: BLUE}]`)
	person, err := f.provider.Verify(t.Context(), f.issuer.Token("ada@example.com", "blue"))
	f.must(err)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			answer, err := f.Onboard(t.Context(), person)
			if err != nil || len(answer.Settings) != 1 || len(answer.Problems) > 0 {
				t.Errorf("the answer is %+v: %v", answer, err)
			}
		})
	}
	all.Wait()
	if got := f.count(f.blue); got != 1 {
		t.Errorf("%d UserSettings were created", got)
	}
}

func TestAPersonGetsABoundedNumberOfSettings(t *testing.T) {
	f := newFixture(t)
	text := "groups:\n" + strings.Repeat("- {group: \"oidc:red\", namespace: missing, x: 1}\n", maxEntries) +
		"- {group: \"oidc:red\", namespace: BLUE}\n"
	f.configure(text)
	if answer, _ := f.signIn("ada@example.com", "red"); len(answer.Settings) > 0 || len(answer.Problems) != maxEntries+1 {
		t.Errorf("ada got %d settings and %d problems", len(answer.Settings), len(answer.Problems))
	}
}

func TestEveryUsernameGetsADistinctValidObjectName(t *testing.T) {
	names := map[string]string{}
	for _, username := range []string{"oidc:ada@example.com", "oidc:ADA@example.com", "oidc:ada.example.com", "oidc:日本",
		"oidc:-", "oidc:" + strings.Repeat("a", 250), "oidc:" + strings.Repeat("a", 249) + "b", "oidc:a'; DROP", "oidc:../x",
		"oidc:" + strings.Repeat("a.", 60)} {
		for _, group := range []string{"oidc:red", "oidc:blue"} {
			name := settingsName(username, "oidc:", group)
			if len(name) > maxName || len(validation.IsDNS1123Label(name)) > 0 {
				t.Errorf("the name for %q is %q", username, name)
			}
			if other, taken := names[name]; taken {
				t.Errorf("%q and %q have the same name", username, other)
			}
			names[name] = username
		}
	}
}
