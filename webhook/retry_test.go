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
		"the connection breaks":      syscall.ECONNRESET,
		"the cache is not there yet": &cache.ErrCacheNotStarted{},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			shaky := interceptor.NewClient(env.Client, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
					options ...client.GetOption) error {
					if asked.Add(1)%2 == 1 {
						return fails
					}
					return c.Get(ctx, key, o, options...)
				},
				Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
					if asked.Add(1)%2 == 1 {
						return fails
					}
					return c.Create(ctx, o, options...)
				},
			})
			validator := &userSettingsValidator{guard: newGuard(shaky, shaky, Options{}), cache: shaky, namespace: ns,
				agents: v1alpha1.AgentCatalogueName}
			if _, err := validator.ValidateCreate(byAdmin(t.Context(), ns), settings); err != nil || asked.Load() < 4 {
				t.Errorf("after %d questions the settings are refused: %v", asked.Load(), err)
			}
		})
	}
}
