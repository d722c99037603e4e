// Package onboarding creates the UserSettings of people who sign in for the first time. The ConfigMap
// parley-onboarding maps their groups to namespaces.
package onboarding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/cmd/internal/identity"
)

const (
	// configKey is the key of the ConfigMap with the list of entries.
	configKey = "onboarding.yaml"
	// maxName is the largest length of the names of UserSettings and SessionClasses.
	maxName = 53
)

// entry says that each person in Group gets UserSettings in Namespace.
type entry struct {
	Group            string  `json:"group"`
	Namespace        string  `json:"namespace"`
	SessionClassName *string `json:"sessionClassName,omitempty"`
	InheritFrom      *string `json:"inheritFrom,omitempty"`

	problem string // empty if the entry is valid
}

// entryLimits are the values that the installation accepts in entries.
type entryLimits struct {
	groupsPrefix string
	// operator is the operator's namespace.
	operator string
	// namespaces are the namespaces that the operator watches; empty means all.
	namespaces []string
}

type config struct {
	byGroup map[string][]entry
	// problems lists all errors in the ConfigMap's text, including the errors of its entries.
	problems []string
}

// parse records a problem for each invalid entry. The other entries stay valid.
func parse(text string, allowed entryLimits) config {
	var fields map[string]json.RawMessage
	var entries []json.RawMessage
	parsed := config{byGroup: map[string][]entry{}}
	if err := yaml.UnmarshalStrict([]byte(text), &fields); err != nil {
		parsed.problems = []string{configKey + " is not valid YAML: " + err.Error()}
		return parsed
	}
	if err := json.Unmarshal(fields["groups"], &entries); err != nil {
		parsed.problems = append(parsed.problems, "groups must be a list")
	}
	delete(fields, "groups")
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		parsed.problems = append(parsed.problems, fmt.Sprintf("unknown field %q", name))
	}
	for i, text := range entries {
		parsed.add(i, text, allowed)
	}
	return parsed
}

func (c *config) add(index int, text json.RawMessage, allowed entryLimits) {
	e, err := decodeEntry(text)
	if err == nil {
		err = e.check(allowed)
	}
	same := func(other entry) bool { return other.problem == "" && other.Namespace == e.Namespace }
	if err == nil && slices.ContainsFunc(c.byGroup[e.Group], same) {
		err = errors.New("namespace: the group has another entry for this namespace")
	}
	if err != nil {
		e.problem = fmt.Sprintf("groups[%d]: %v", index, err)
		c.problems = append(c.problems, e.problem)
	}
	c.byGroup[e.Group] = append(c.byGroup[e.Group], e)
}

// decodeEntry decodes an entry. If the entry has an unknown field, the result still contains the
// group, so that the people in the group learn of the problem.
func decodeEntry(text json.RawMessage) (e entry, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&e); err != nil {
		return e, errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return e, nil
}

func (e *entry) check(allowed entryLimits) error {
	switch {
	case !identity.Valid(e.Group) || !strings.HasPrefix(e.Group, allowed.groupsPrefix):
		return fmt.Errorf("group: must be the name of a group with its prefix, such as %sdevelopers", allowed.groupsPrefix)
	case !isName(e.Namespace, validation.DNS1123LabelMaxLength):
		return fmt.Errorf("namespace: %q is not a valid name of a namespace", e.Namespace)
	case e.Namespace == allowed.operator:
		return errors.New("namespace: must not be the namespace of Parley itself")
	case len(allowed.namespaces) > 0 && !slices.Contains(allowed.namespaces, e.Namespace):
		return fmt.Errorf("namespace: Parley does not watch the namespace %s", e.Namespace)
	case e.SessionClassName != nil && !isName(*e.SessionClassName, maxName):
		return fmt.Errorf("sessionClassName: %q is not a valid name of a SessionClass", *e.SessionClassName)
	case e.InheritFrom != nil && !isName(*e.InheritFrom, maxName):
		return fmt.Errorf("inheritFrom: %q is not a valid name of UserSettings", *e.InheritFrom)
	}
	return nil
}

func isName(name string, most int) bool {
	return len(name) <= most && len(validation.IsDNS1123Label(name)) == 0
}
