package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

// This command replaces the content of every writable file with an empty JSON object. It then
// writes the number of files to the file "rewritten".
const rewrite = `n=0; for file in $(find / \( -path /proc -o -path /sys -o -path /dev \) -prune -o -type f -writable ` +
	`-print); do echo '{}' > "$file" && n=$((n+1)); done; echo $n > rewritten`

// rewriteFiles lets an agent rewrite all files that it can reach, including the journal of its
// session. The ledger must still agree with the model's own count, before and after a restart of
// the session.
func rewriteFiles(t *t) {
	const class = "spend"
	defer t.makeClass(class, func(s *v1alpha1.SessionClassSpec) {
		s.Spend = &v1alpha1.SpendingLimits{PerUser: &v1alpha1.SpendingLimit{Month: ptr.To("1")}}
	})()
	_, err := t.kubectl(t.ctx, "patch", "configmap", v1alpha1.ModelsName, "--namespace="+parleyNamespace, "--type=merge",
		fmt.Sprintf(`--patch={"data":{%q:"scripted/model: {input: 3, output: 15, maxOutput: 1000}"}}`,
			session.ModelOverrides))
	t.must(err)
	u := t.newUser()
	settings := &v1alpha1.UserSettings{}
	t.must(t.client.Get(t.ctx, client.ObjectKey{Namespace: u.namespace, Name: "default"}, settings))
	before := settings.DeepCopy()
	settings.Spec.SessionClassName = ptr.To(class)
	t.must(t.client.Patch(t.ctx, settings, client.MergeFrom(before)))

	usage := &scriptedmodel.Usage{Input: 1000, Output: 100}
	model, baseURL := t.scriptedModel(
		scriptedmodel.Step{Usage: usage, Calls: []scriptedmodel.Call{{Name: "execute_bash",
			Input: scriptedmodel.Input(map[string]any{"command": rewrite})}}},
		scriptedmodel.Step{Text: "Here I am.", Usage: usage, Times: 10},
	)
	c := t.converse(u, rest.Settings{
		LLMModel: rest.Set("scripted/model"), LLMAPIKey: rest.NewKey(secretValue()), LLMBaseURL: rest.Set(baseURL),
	}, "rewriter", "Rewrite all files.")
	t.retry(func(ctx context.Context) error {
		count, err := t.exec(ctx, c, "cat rewritten")
		if err == nil && count == "" {
			err = errors.New("the file is empty")
		}
		if err == nil {
			t.Logf("the agent rewrote %s files", count)
		}
		return err
	})
	t.post(u, "/api/conversations/rewriter/stop", struct{}{}, &rest.ConversationResponse{})
	t.await(c, v1alpha1.StateStopped, v1alpha1.ReasonSuspended)
	t.awaitCosts(u, model)
	const question = "Are you there?"
	t.post(u, "/api/conversations/rewriter/message", map[string]string{"message": question}, &struct{}{})
	t.retry(func(context.Context) error {
		if all := model.Requests(); !all[len(all)-1].Contains(question) {
			return fmt.Errorf("the last of %d calls does not have the message", len(all))
		}
		return nil
	})
	t.awaitCosts(u, model)
}

// awaitCosts waits until the ledger has the same usage as the model.
func (t *t) awaitCosts(u *user, model *scriptedmodel.Server) {
	t.retry(func(context.Context) error {
		var usage rest.Usage
		t.call(u, http.MethodGet, "/api/usage", nil, &usage)
		var recorded scriptedmodel.Usage
		for _, line := range usage.Lines {
			recorded.Input += int(line.InputTokens)
			recorded.Output += int(line.OutputTokens)
		}
		if want := model.Spent(); recorded != want || usage.Unsettled != "0" {
			return fmt.Errorf("the ledger has %+v and $%s unsettled, the model counts %+v", recorded, usage.Unsettled, want)
		}
		t.Logf("the ledger and the model agree: %+v, $%s", recorded, usage.Spent)
		return nil
	})
}
