package objects

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
)

func limitedClass() Class {
	return Class{Name: "team", Spec: v1alpha1.SessionClassSpec{Spend: &v1alpha1.SpendingLimits{
		PerUser:      &v1alpha1.SpendingLimit{Day: ptr.To("4.50"), Month: ptr.To("50")},
		PerNamespace: &v1alpha1.SpendingLimit{Month: ptr.To("2000")}}}}
}

func TestTheOwnerOfTheSettingsPaysForASession(t *testing.T) {
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ada", UID: "u"}}
	owned := settings.DeepCopy()
	owned.Spec.Owner = &v1alpha1.SettingsOwner{Username: "oidc:ada"}
	quiet := limitedClass()
	quiet.Spec.Spend.NoticePercent = ptr.To[int32](0)
	limits := session.SpendClaims{Owner: "u", Namespace: "ns", Soft: 80,
		PerUser:      session.SpendLimits{Day: 9 * session.Dollar / 2, Month: 50 * session.Dollar},
		PerNamespace: session.SpendLimits{Month: 2000 * session.Dollar}}
	silent := limits
	silent.Soft = 0
	for name, c := range map[string]struct {
		class    Class
		settings *v1alpha1.UserSettings
		want     session.SpendClaims
	}{
		"without limits":  {Class{}, settings, session.SpendClaims{Owner: "u", Namespace: "ns"}},
		"an owner":        {Class{}, owned, session.SpendClaims{Owner: "oidc:ada", Namespace: "ns"}},
		"with limits":     {limitedClass(), settings, limits},
		"without notices": {quiet, settings, silent},
	} {
		if got, err := c.class.SpendClaims(c.settings); err != nil || *got != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, amount := range []string{"0", "much", ""} {
		broken := Class{Name: "broken", Spec: v1alpha1.SessionClassSpec{Spend: &v1alpha1.SpendingLimits{
			PerUser: &v1alpha1.SpendingLimit{Month: &amount}}}}
		if claims, err := broken.SpendClaims(settings); err == nil {
			t.Errorf("a limit of %q becomes %+v", amount, claims)
		}
	}
}

func TestASpendingLimitThatCannotBeEnforcedBlocksTheSession(t *testing.T) {
	models := session.Models{"openai/gpt-5": {Input: "1", Output: "2"}, "openrouter/unpriced": {ContextWindow: 1}}
	of := func(model string) *v1alpha1.UserSettingsSpec { return &v1alpha1.UserSettingsSpec{LLMModel: &model} }
	for name, c := range map[string]struct {
		class    Class
		settings *v1alpha1.UserSettingsSpec
		archive  string
		want     string
	}{
		"no limit":                {Class{}, of("local/unknown"), "", ""},
		"a price":                 {limitedClass(), of("openai/gpt-5"), "http://archive", ""},
		"no model":                {limitedClass(), &v1alpha1.UserSettingsSpec{}, "http://archive", ""},
		"no archive":              {limitedClass(), of("openai/gpt-5"), "", "has no archive"},
		"no price":                {limitedClass(), of("local/unknown"), "http://archive", "local/unknown has no price"},
		"a provider with its own": {limitedClass(), of("openrouter/unpriced"), "http://archive", "has no price"},
	} {
		blocker := c.class.SpendNotAllowed(c.settings, models, c.archive)
		if (blocker == nil) != (c.want == "") || blocker != nil && (blocker.Reason != v1alpha1.ReasonNotAllowed ||
			!strings.Contains(blocker.Message, c.want)) {
			t.Errorf("%s: %+v", name, blocker)
		}
	}
	image := &v1alpha1.UserSettingsSpec{SandboxRuntimeContainerImage: ptr.To("mine:1")}
	conversation := makeConversation("ns", "c").Obj()
	if got := (Class{Name: "free"}).NotAllowed(conversation, image, nil); got != nil {
		t.Errorf("without limits: %+v", got)
	}
	if got := limitedClass().NotAllowed(conversation, image, nil); got == nil ||
		!strings.Contains(got.Message, "sandboxRuntimeContainerImage") {
		t.Errorf("an image with its own runtime: %+v", got)
	}
}

func TestAChangedSpendingLimitChangesTheHashOfTheSessionsSecret(t *testing.T) {
	hashes := map[string]bool{}
	for _, month := range []session.Dollars{0, 1, 2} {
		secret, err := Secret(makeConversation("ns", "c").Obj(), SecretInputs{Spend: &session.SpendClaims{Owner: "ada",
			PerUser: session.SpendLimits{Month: month}}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		hashes[secret.Annotations[AnnotationInputs]] = true
	}
	if len(hashes) != 3 {
		t.Errorf("3 limits have %d hashes", len(hashes))
	}
}
