package webhook

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// A rule refuses a Conversation if every field in rule.set has a value, no field in rule.unset has
// a value, and the condition, if any, holds. The Go check and the match condition derive from these
// rules. The rules are not in the schema: the API server would evaluate them at every status write,
// and they would cost more than all other rules together.
type rule struct {
	field      string
	set, unset []string
	// condition is an additional condition, if any. conditionCEL is the same condition in CEL.
	condition    func(*v1alpha1.ConversationSpec) bool
	conditionCEL string
	problem      string
}

const noReplay = "must be absent when replayJSONRef is set: a replay brings its own "

var rules = []rule{
	{field: "initialUserMsg", set: []string{"replayJSONRef", "initialUserMsg"}, problem: noReplay + "first message"},
	{field: "imageURLs", set: []string{"replayJSONRef", "imageURLs"}, problem: noReplay + "images"},
	{field: "images", set: []string{"replayJSONRef", "images"}, problem: noReplay + "images"},
	{field: "suggestedTask", set: []string{"replayJSONRef", "suggestedTask"}, problem: noReplay + "first message"},
	{field: "createMicroagent", set: []string{"replayJSONRef", "createMicroagent"}, problem: noReplay + "first message"},
	{field: "gitProvider", set: []string{"suggestedTask", "gitProvider"},
		condition:    func(s *v1alpha1.ConversationSpec) bool { return *s.GitProvider != s.SuggestedTask.GitProvider },
		conditionCEL: "object.spec.gitProvider != object.spec.suggestedTask.gitProvider",
		problem:      "must equal the gitProvider of suggestedTask, or be absent"},
	{field: "images", set: []string{"images", "imageURLs"},
		problem: "must be absent when imageURLs is set: the field images can also contain URLs"},
	{field: "createMicroagent", set: []string{"suggestedTask", "createMicroagent"},
		problem: "must be absent when suggestedTask is set: set only one of them"},
	{field: "selectedBranch", set: []string{"selectedBranch"},
		unset:   []string{"repository", "suggestedTask", "createMicroagent"},
		problem: "needs a repository: set repository, suggestedTask or createMicroagent"},
	{field: "oneShot", set: []string{"oneShot"},
		unset: []string{"initialUserMsg", "suggestedTask", "createMicroagent", "conversationInstructions",
			"imageURLs", "images", "replayJSONRef"},
		problem: "needs something to do: a message, images, a task, a microagent, instructions or a replay"},
}

func (r rule) cel() string {
	terms := isSet(r.set...)
	for _, term := range isSet(r.unset...) {
		terms = append(terms, "!"+term)
	}
	if r.condition != nil {
		terms = append(terms, r.conditionCEL)
	}
	return strings.Join(terms, " && ")
}

func ruleErrors(spec *v1alpha1.ConversationSpec) (errs field.ErrorList) {
	set := sets.New((&v1alpha1.ConversationSpec{}).Differences(spec)...)
	for _, rule := range rules {
		if set.HasAll(rule.set...) && !set.HasAny(rule.unset...) && (rule.condition == nil || rule.condition(spec)) {
			errs = append(errs, invalid(field.NewPath("spec", rule.field), rule.field+" "+rule.problem))
		}
	}
	return errs
}

// changeErrors returns an error for each immutable field or annotation that was changed, added or
// removed. The schema already refuses changed values, but it allows most fields to be added or
// removed.
func changeErrors(old, changed *v1alpha1.Conversation) (errs field.ErrorList) {
	before, after := old.Spec.Immutable(), changed.Spec.Immutable()
	for _, name := range before.Differences(&after) {
		errs = append(errs, invalid(field.NewPath("spec", name), "cannot be changed: create a new Conversation"))
	}
	if requesterChanged(old, changed) {
		errs = append(errs, field.Forbidden(requesterPath, "cannot be changed"))
	}
	return errs
}
