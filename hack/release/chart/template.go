package main

import (
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const header = "{{- /* Generated from config/ by make chart. Do not edit. */ -}}\n"

// sheet is an object that becomes a Helm template. Its fields contain marks, which text() creates.
// Later, fill() replaces each mark with an entry of texts.
type sheet struct {
	*unstructured.Unstructured
	texts []string
	err   error
}

var mark = regexp.MustCompile(`^( *)(- )?(?:[^\n]*: )?xmark(\d+)x(?:: "")?$`)

// text returns a mark for a template text. Later, fill() replaces the mark's whole line
// with the text and keeps the indentation.
func (s *sheet) text(format string, args ...any) string {
	s.texts = append(s.texts, fmt.Sprintf(format, args...))
	return fmt.Sprintf("xmark%dx", len(s.texts)-1)
}

func template(object *unstructured.Unstructured, when condition) (string, error) {
	s := &sheet{Unstructured: object.DeepCopy()}
	s.values()
	if s.err != nil {
		return "", s.err
	}
	content, err := yaml.Marshal(s.Object)
	if err != nil {
		return "", err
	}
	text := string(content)
	if when == perNamespace {
		// These objects refer to objects in Parley's namespace. kustomize does not change these
		// references. Replace their namespace and their name prefix with the marks for Helm here.
		text = strings.NewReplacer("parley-system", markNamespace, "name: parley-", "name: "+markPrefix+
			"parley-").Replace(text)
	}
	// The manifests may contain template syntax of other programs.
	text = strings.NewReplacer("{{", `{{ "{{" }}`, "}}", `{{ "}}" }}`).Replace(text)
	text = s.fill(text)
	text = strings.NewReplacer(
		markPrefix, "{{ $.Values.namePrefix }}",
		markNamespace, "{{ $.Release.Namespace }}",
		markTenant, "{{ $namespace }}",
		markImage+":mark", `{{ include "parley.image" $ }}`,
	).Replace(text)
	switch when {
	case always:
		return header + text, nil
	case perNamespace:
		return header + string(when) + "\n---\n" + text + "{{- end }}\n", nil
	}
	return header + string(when) + "\n" + text + "{{- end }}\n", nil
}

func (s *sheet) fill(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		found := mark.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if found == nil {
			lines = append(lines, line)
			continue
		}
		var index int
		_, _ = fmt.Sscan(found[3], &index)
		for each := range strings.Lines(strings.TrimSuffix(s.texts[index], "\n") + "\n") {
			if !strings.HasPrefix(each, "{{- ") {
				each = found[1] + each
			}
			// A template text contains INDENT instead of the argument of Helm's function nindent.
			// The argument must be the indentation of the line, plus two.
			depth := len(each) - len(strings.TrimLeft(each, " ")) + 2
			lines = append(lines, strings.ReplaceAll(each, "INDENT", fmt.Sprint(depth)))
		}
	}
	return strings.Join(lines, "")
}
