package webhook

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// combinationErrors are about fields that do not go together, or that need another.
func combinationErrors(spec *v1alpha1.ConversationSpec) (errs field.ErrorList) {
	task, message, images := spec.SuggestedTask != nil, spec.InitialUserMsg != nil, spec.Images != nil
	urls, microagent, replay := spec.ImageURLs != nil, spec.CreateMicroagent != nil, spec.ReplayJSONRef != nil
	something := slices.Contains([]bool{message, urls, images, task, microagent, replay,
		spec.ConversationInstructions != nil}, true)
	const replayed = " must be absent when replayJSONRef is set: a replay brings its own "
	for _, rule := range []struct {
		broken        bool
		name, problem string
	}{
		{replay && message, "initialUserMsg", replayed + "first message"},
		{replay && urls, "imageURLs", replayed + "images"},
		{replay && images, "images", replayed + "images"},
		{replay && task, "suggestedTask", replayed + "first message"},
		{replay && microagent, "createMicroagent", replayed + "first message"},
		{task && spec.GitProvider != nil && *spec.GitProvider != spec.SuggestedTask.GitProvider, "gitProvider",
			" must be that of suggestedTask, or absent"},
		{images && urls, "images", " must be absent when imageURLs is set: images holds URLs too, in the order that is " +
			"meant"},
		{task && microagent, "createMicroagent", " must be absent when suggestedTask is set: ask for one of them"},
		{spec.SelectedBranch != nil && spec.Repository == nil && !task && !microagent, "selectedBranch",
			" needs a repository to be a branch of"},
		{spec.OneShot && !something, "oneShot", " needs something to do: a message, images, a task, a microagent, " +
			"instructions or a replay"},
	} {
		if rule.broken {
			errs = append(errs, invalid(field.NewPath("spec", rule.name), rule.name+rule.problem))
		}
	}
	return errs
}

// changeErrors are about what a session was asked to do, which stays as it is.
func changeErrors(old, changed *v1alpha1.Conversation) (errs field.ErrorList) {
	before, after := old.Spec.Immutable(), changed.Spec.Immutable()
	for _, name := range before.Differences(&after) {
		errs = append(errs, invalid(field.NewPath("spec", name), name+" cannot be changed: create a new Conversation"))
	}
	return errs
}
