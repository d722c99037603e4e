package webhook

import (
	"context"
	"sync/atomic"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/parley-dev/parley/api/v1alpha1"
)

func TestTransientErrorsAreRetried(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	settings := &v1alpha1.UserSettings{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "ada"},
		Spec: v1alpha1.UserSettingsSpec{
			Agent: ptr.To("CodeActAgent"), LLMAPIKeyRef: &v1alpha1.SecretKeyRef{Name: "llm", Key: "key"},
			SessionClassName: ptr.To("large"),
		}}
	for name, fails := range map[string]error{
		"a broken connection":          syscall.ECONNRESET,
		"a cache that has not started": &cache.ErrCacheNotStarted{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			flaky := interceptor.NewClient(env.Client, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
					options ...client.GetOption) error {
					if calls.Add(1)%2 == 1 {
						return fails
					}
					return c.Get(ctx, key, o, options...)
				},
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
					if calls.Add(1)%2 == 1 {
						return fails
					}
					return c.Create(ctx, o, options...)
				},
			})
			validator := &userSettingsValidator{guard: newGuard(flaky, flaky, Options{}), cache: flaky,
				agents: agentCatalogue{Namespace: ns, Name: v1alpha1.AgentCatalogueName}}
			if _, err := validator.ValidateCreate(byAdmin(t.Context(), ns), settings); err != nil || calls.Load() < 4 {
				t.Errorf("after %d calls the settings are refused: %v", calls.Load(), err)
			}
		})
	}
}
