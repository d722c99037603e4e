package main

import "strings"

const withSignIn condition = "{{- if $.Values.signIn.enabled }}"

// signIn makes the arguments, variables and volumes for sign-in conditional: the chart renders them
// only if the value signIn.enabled is true.
func (s *sheet) signIn(component string, pod, container map[string]any) {
	volumes := named("oidc-client", "oidc-ca", "webhook-ca")
	container["args"] = s.only(withSignIn, container["args"], flags("--oidc-", "--external-url", "--onboarding-"))
	if component == "facade" {
		container["env"] = s.only(withSignIn, container["env"], named("WEBHOOK_SERVICE"))
	}
	container["volumeMounts"] = s.only(withSignIn, container["volumeMounts"], volumes)
	pod["volumes"] = s.only(withSignIn, pod["volumes"], volumes)
	names := strings.NewReplacer("parley-oidc-client", "{{ $.Values.signIn.clientSecretName }}",
		"parley-oidc-ca", `{{ default "parley-oidc-ca" $.Values.signIn.caConfigMapName }}`)
	for i, text := range s.texts {
		s.texts[i] = names.Replace(text)
	}
	delete(container, "envFrom")
	container[s.text("%s\nenvFrom:\n- configMapRef:\n    name: %sparley-signin\n{{- end }}", withSignIn, markPrefix)] = ""
}

// signInConfig sets the values of the ConfigMap that describes the OpenID provider.
func (s *sheet) signInConfig() {
	for key, value := range map[string]string{
		"OIDC_ISSUER_URL":      "issuerURL",
		"OIDC_CLIENT_ID":       "clientID",
		"OIDC_CLI_CLIENT_ID":   "cliClientID",
		"OIDC_USERNAME_CLAIM":  "usernameClaim",
		"OIDC_USERNAME_PREFIX": "usernamePrefix",
		"OIDC_GROUPS_CLAIM":    "groupsClaim",
		"OIDC_GROUPS_PREFIX":   "groupsPrefix",
		"EXTERNAL_URL":         "externalURL",
	} {
		s.set(s.text("%s: {{ $.Values.signIn.%s | quote }}", key, value), "data", key)
	}
	s.set(s.text(`OIDC_SCOPES: {{ join "," $.Values.signIn.scopes | quote }}`), "data", "OIDC_SCOPES")
	s.set(s.text(`OIDC_CA_FILE: {{ if $.Values.signIn.caConfigMapName }}/run/parley/oidc-ca/ca.crt{{ else }}""{{ end }}`),
		"data", "OIDC_CA_FILE")
}

// podAnnotations adds annotations to the pods. One annotation is a checksum of the sign-in values,
// so that Kubernetes replaces the pods when these values change.
func (s *sheet) podAnnotations(component string) {
	own := "$.Values." + component + ".podAnnotations"
	if component == "archive" {
		s.addBlock("spec.template.metadata", "annotations", own)
		return
	}
	s.add("spec.template", "metadata", "{{- if or $.Values.signIn.enabled "+own+" }}\nannotations:\n"+
		"{{- if $.Values.signIn.enabled }}\n  checksum/signin: {{ toJson $.Values.signIn | sha256sum }}\n{{- end }}\n"+
		"{{- range $key, $value := "+own+" }}\n  {{ $key }}: {{ $value | quote }}\n{{- end }}\n{{- end }}")
}
