package main

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func (s *sheet) values() {
	switch s.GetKind() {
	case "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
		s.SetNamespace("") // kustomize does not know that these are cluster-scoped
		if s.GetKind() == "ValidatingAdmissionPolicyBinding" && s.GetName() == markPrefix+"parley-status" {
			s.add("", "spec", "{{- with $.Values.namespaces }}\nmatchResources:\n  "+
				strings.ReplaceAll(selectedNamespaces, "\n", "\n  ")+"\n  excludeResourceRules:\n  - apiGroups: [parley.dev]\n"+
				"    apiVersions: [\"*\"]\n    operations: [\"*\"]\n    resources: [sessionclasses/status]\n{{- end }}")
		}
	case "Deployment":
		s.deployment(strings.TrimPrefix(s.GetName(), markPrefix+"parley-"))
	case "PodDisruptionBudget":
		s.set(s.text("minAvailable: {{ $.Values.%s.minAvailable }}", strings.TrimPrefix(s.GetName(), markPrefix+"parley-")),
			"spec", "minAvailable")
	case "CustomResourceDefinition":
		// If Helm deleted the CRDs, Kubernetes would delete all objects of users.
		s.add("metadata", "annotations", "{{- if $.Values.crds.keep }}\nhelm.sh/resource-policy: keep\n{{- end }}")
	case "ValidatingWebhookConfiguration":
		s.webhooks()
	case "Service":
		if s.GetName() == markPrefix+"parley-facade" {
			s.set(s.text("type: {{ $.Values.facade.service.type }}"), "spec", "type")
			s.addBlock("metadata", "annotations", "$.Values.facade.service.annotations")
		}
	case "PersistentVolumeClaim":
		s.claim()
	case "ConfigMap":
		if s.GetName() == markPrefix+"parley-signin" {
			s.signInConfig()
		}
	case "NetworkPolicy":
		s.egress()
	case "ServiceMonitor", "PodMonitor", "PrometheusRule":
		s.addBlock("metadata", "labels", "$.Values.monitoring.labels")
	case "Ingress":
		s.ingress()
	case "Gateway", "HTTPRoute":
		s.gateway()
	case "SessionClass":
		// A class needs its CRD, which may be in the same release, so Helm creates the class in a
		// hook. Objects of hooks do not belong to the release, so an uninstall keeps the class.
		s.add("metadata", "annotations", "helm.sh/hook: post-install")
	}
}

// claim sets the values of the archive's PersistentVolumeClaim. By default an uninstall keeps the
// claim and its data.
func (s *sheet) claim() {
	s.add("metadata", "annotations", "{{- if $.Values.archive.keep }}\nhelm.sh/resource-policy: keep\n{{- end }}")
	s.set(s.text("storage: {{ $.Values.archive.size }}"), "spec", "resources", "requests", "storage")
	s.add("", "spec", "{{- with $.Values.archive.storageClassName }}\nstorageClassName: {{ . }}\n{{- end }}")
}

// egress changes two rules. The rule with port 443 gets its ports from a chart value, so that the
// ports of the API server are configurable. The rule with port 9443 exists only with sign-in: on
// this port, the facade asks the manager to create the UserSettings of people who sign in.
func (s *sheet) egress() {
	rules, _, err := unstructured.NestedSlice(s.Object, "spec", "egress")
	if err != nil {
		s.err = err
		return
	}
	opens := func(rule any, port string) bool {
		ports, _ := rule.(map[string]any)["ports"].([]any)
		if len(ports) == 0 {
			return false
		}
		first, isPort := ports[0].(map[string]any) // a mark from text() is not a map
		return isPort && fmt.Sprint(first["port"]) == port
	}
	for _, each := range rules {
		if rule := each.(map[string]any); opens(rule, "443") {
			rule["ports"] = []any{s.text("{{- range $.Values.networkPolicy.egressPorts }}\n- port: {{ . }}\n  protocol: TCP\n" +
				"{{- end }}")}
		}
	}
	rules = s.only(withSignIn, rules, func(rule any) bool { return opens(rule, "9443") })
	s.set(rules, "spec", "egress")
}

// archive sets the values of the archive's Deployment. Without a bucket, the archive needs a volume
// and can have only one replica.
func (s *sheet) archive(pod, container map[string]any) {
	s.set(s.text("type: {{ if $.Values.archive.url }}RollingUpdate{{ else }}Recreate{{ end }}"), "spec", "strategy",
		"type")
	args := container["args"].([]any)
	for i, arg := range args {
		if address, is := strings.CutPrefix(arg.(string), "--store="); is {
			args[i] = s.text("- {{ printf \"--store=%%s\" (default %q $.Values.archive.url) | quote }}", address)
		}
	}
	container["volumeMounts"] = s.only(withoutBucket, container["volumeMounts"], named("archive"))
	pod["volumes"] = s.only(withoutBucket, pod["volumes"], named("archive"))
	container["env"] = append(container["env"].([]any), s.text("{{- with $.Values.archive.env }}\n{{- toYaml . | "+
		"nindent 8 }}\n{{- end }}"))
}

func (s *sheet) only(when condition, list any, matches func(item any) bool) (conditional []any) {
	for items := list.([]any); len(items) > 0; {
		other := func(item any) bool { return !matches(item) }
		same := slices.IndexFunc(items, other) // the number of matching entries at the start
		if same < 0 {
			same = len(items)
		}
		if same == 0 {
			conditional, items = append(conditional, items[0]), items[1:]
			continue
		}
		text, err := yaml.Marshal(items[:same])
		if err != nil {
			s.err = err
			return nil
		}
		conditional, items = append(conditional, s.text("%s\n%s{{- end }}", when, text)), items[same:]
	}
	return conditional
}

// named returns a function that matches objects with one of these names.
func named(names ...string) func(any) bool {
	return func(item any) bool {
		object, is := item.(map[string]any)
		return is && slices.Contains(names, fmt.Sprint(object["name"]))
	}
}

// flags returns a function that matches arguments with one of these prefixes.
func flags(prefixes ...string) func(any) bool {
	return func(item any) bool {
		text, is := item.(string)
		return is && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(text, p) })
	}
}

func (s *sheet) deployment(component string) {
	of := "$.Values." + component
	s.set(s.text("replicas: {{ %s.replicas }}", of), "spec", "replicas")
	pod, _, err := unstructured.NestedMap(s.Object, "spec", "template", "spec")
	if err != nil {
		s.err = err
		return
	}
	for _, field := range []string{"nodeSelector", "affinity", "tolerations"} {
		pod[s.text("{{- with %s.%s }}\n%s: {{- toYaml . | nindent INDENT }}\n{{- end }}", of, field, field)] = ""
	}
	pod[s.text("{{- with $.Values.imagePullSecrets }}\nimagePullSecrets: {{- toYaml . | nindent INDENT }}\n{{- end }}")] =
		""
	container := pod["containers"].([]any)[0].(map[string]any)
	container["resources"] = s.text("resources: {{- toYaml %s.resources | nindent INDENT }}", of)
	container["imagePullPolicy"] = s.text("imagePullPolicy: {{ $.Values.image.pullPolicy }}")
	if component == "archive" {
		s.archive(pod, container)
	} else {
		container["args"] = s.only(withArchive, container["args"], flags("--archive"))
		container["env"] = s.only(withArchive, container["env"], named("ARCHIVE_SERVICE"))
		s.signIn(component, pod, container)
	}
	args := append(container["args"].([]any), s.text("{{- with $.Values.namespaces }}\n- --namespaces={{ join \",\" . "+
		"}}\n{{- end }}"))
	if component == "manager" {
		args = append(args, s.text("{{- if $.Values.certManager.enabled }}\n- --webhook-cert-rotation=false\n{{- end }}"))
	}
	container["args"] = append(args, s.text("{{- range %s.extraArgs }}\n- {{ . | quote }}\n{{- end }}", of))
	s.err = unstructured.SetNestedMap(s.Object, pod, "spec", "template", "spec")
	s.podAnnotations(component)
}

const selectedNamespaces = `namespaceSelector:
  matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: In
    values: {{- toYaml . | nindent INDENT }}`

// webhooks adds a namespace selector to each webhook if the release lists namespaces. If
// cert-manager is enabled, webhooks also annotates the webhook configuration, so that cert-manager
// sets its CA.
func (s *sheet) webhooks() {
	webhooks, _, err := unstructured.NestedSlice(s.Object, "webhooks")
	if err != nil {
		s.err = err
		return
	}
	for _, each := range webhooks {
		each.(map[string]any)[s.text("{{- with $.Values.namespaces }}\n"+selectedNamespaces+"\n{{- end }}")] = ""
	}
	s.err = unstructured.SetNestedSlice(s.Object, webhooks, "webhooks")
	s.add("", "metadata", "{{- if $.Values.certManager.enabled }}\nannotations:\n  cert-manager.io/inject-ca-from: "+
		markNamespace+"/parley-webhook\n{{- end }}")
}

func (s *sheet) ingress() {
	s.addBlock("metadata", "annotations", "$.Values.ingress.annotations")
	s.add("", "spec", "{{- with $.Values.ingress.className }}\ningressClassName: {{ . }}\n{{- end }}")
	s.set([]any{map[string]any{
		"hosts":      []any{s.text("- {{ $.Values.ingress.host }}")},
		"secretName": s.text("secretName: {{ $.Values.ingress.tlsSecret }}"),
	}}, "spec", "tls")
	rules, _, err := unstructured.NestedSlice(s.Object, "spec", "rules")
	if err != nil {
		s.err = err
		return
	}
	rule := rules[0].(map[string]any)
	rule["host"] = s.text("- host: {{ $.Values.ingress.host }}")
	s.set(rules, "spec", "rules")
}

func (s *sheet) gateway() {
	if s.GetKind() == "HTTPRoute" {
		s.set([]any{s.text("- {{ $.Values.gateway.host }}")}, "spec", "hostnames")
		return
	}
	s.set(s.text("gatewayClassName: {{ $.Values.gateway.className }}"), "spec", "gatewayClassName")
	listeners, _, err := unstructured.NestedSlice(s.Object, "spec", "listeners")
	if err != nil {
		s.err = err
		return
	}
	listener := listeners[0].(map[string]any)
	listener["hostname"] = s.text("- hostname: {{ $.Values.gateway.host }}")
	if err := unstructured.SetNestedSlice(listener,
		[]any{map[string]any{"name": s.text("- name: {{ $.Values.gateway.tlsSecret }}")}}, "tls",
		"certificateRefs"); err != nil {
		s.err = err
	}
	s.set(listeners, "spec", "listeners")
}

func (s *sheet) set(value any, path ...string) {
	if err := unstructured.SetNestedField(s.Object, value, path...); err != nil && s.err == nil {
		s.err = err
	}
}

// add adds template lines to a map of the object. It creates a missing map.
func (s *sheet) add(in, field, text string) {
	path := append(strings.FieldsFunc(in, func(r rune) bool { return r == '.' }), field)
	found, _, err := unstructured.NestedMap(s.Object, path...)
	if err != nil {
		s.err = err
		return
	}
	if found == nil {
		found = map[string]any{}
	}
	found[s.text("%s", text)] = ""
	s.set(found, path...)
}

// addBlock adds the entries of a chart value to a map of the object, such as its labels.
func (s *sheet) addBlock(in, field, value string) {
	path := append(strings.FieldsFunc(in, func(r rune) bool { return r == '.' }), field)
	if _, exists, _ := unstructured.NestedMap(s.Object, path...); exists {
		s.add(in, field, fmt.Sprintf("{{- range $key, $value := %s }}\n{{ $key }}: {{ $value | quote }}\n{{- end }}", value))
		return
	}
	parent := append([]string{}, path[:len(path)-1]...)
	s.add(strings.Join(parent[:len(parent)-1], "."), parent[len(parent)-1],
		fmt.Sprintf("{{- with %s }}\n%s: {{- toYaml . | nindent INDENT }}\n{{- end }}", value, field))
}
