package webhook

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// combinationErrors are about fields that do not go together, or that need another.
func combinationErrors(spec *v1alpha1.ConversationSpec) (errs field.ErrorList) {
	refuse := func(name, problem string) {
		errs = append(errs, invalid(field.NewPath("spec", name), problem))
	}
	task, message, images := spec.SuggestedTask != nil, spec.InitialUserMsg != nil, spec.Images != nil
	urls, microagent, replay := spec.ImageURLs != nil, spec.CreateMicroagent != nil, spec.ReplayJSONRef != nil
	for _, other := range []struct {
		name, brings string
		set          bool
	}{
		{"initialUserMsg", "first message", message}, {"imageURLs", "images", urls}, {"images", "images", images},
		{"suggestedTask", "first message", task}, {"createMicroagent", "first message", microagent},
	} {
		if replay && other.set {
			refuse(other.name, other.name+" must be absent when replayJSONRef is set: a replay brings its own "+other.brings)
		}
	}
	if task && spec.GitProvider != nil && *spec.GitProvider != spec.SuggestedTask.GitProvider {
		refuse("gitProvider", "gitProvider must be that of suggestedTask, or absent")
	}
	if images && urls {
		refuse("images", "images must be absent when imageURLs is set: images holds URLs too, in the order that is meant")
	}
	if task && microagent {
		refuse("createMicroagent", "createMicroagent must be absent when suggestedTask is set: ask for one of them")
	}
	if spec.SelectedBranch != nil && spec.Repository == nil && !task && !microagent {
		refuse("selectedBranch", "selectedBranch needs a repository to be a branch of")
	}
	if something := message || urls || images || task || microagent || replay || spec.ConversationInstructions != nil; spec.OneShot && !something {
		refuse("oneShot", "oneShot needs something to do: a message, images, a task, a microagent, instructions or a replay")
	}
	return errs
}

// changeErrors are about what a session was asked to do, which stays as it is.
func changeErrors(old, changed *v1alpha1.Conversation) (errs field.ErrorList) {
	before, after := reflect.ValueOf(old.Spec.Asked()), reflect.ValueOf(changed.Spec.Asked())
	for i := range before.NumField() {
		if equality.Semantic.DeepEqual(before.Field(i).Interface(), after.Field(i).Interface()) {
			continue
		}
		name, _, _ := strings.Cut(before.Type().Field(i).Tag.Get("json"), ",")
		errs = append(errs, invalid(field.NewPath("spec", name), name+" cannot be changed: create a new Conversation"))
	}
	return errs
}
