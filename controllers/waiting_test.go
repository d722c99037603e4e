package controllers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func waitingWith(reason, message string) string {
	return whyWaiting("example.com/forbidden/certificates:401", &corev1.ContainerStateWaiting{Reason: reason,
		Message: message})
}

// What a registry answers is told in words of ours: who names an image names who answers.
func TestWhyAnImageDoesNotComeIsTold(t *testing.T) {
	for message, want := range map[string]string{
		`HEAD "https://example.com/v2/forbidden/certificates/manifests/401": EOF`: "ErrImagePull",
		"": "ErrImagePull",
		`failed to resolve "example.com/forbidden/certificates:401": hunter2`:                                        "ErrImagePull",
		`rpc error: code = NotFound desc = failed to pull and unpack image "example.com/base:1": hunter2: not found`: "ErrImagePull: the registry has no such image",
		`failed to authorize: unexpected status from GET request to https://r.example.com/token?x=hunter2: 401 ` +
			`Unauthorized`: "ErrImagePull: the registry does not let the node have it",
		`unexpected status from HEAD request to https://r.example.com/v2/hunter2: 403 Forbidden`: "ErrImagePull: the " +
			"registry does not let the node have it",
		`pull access denied, repository does not exist or may require authorization`: "ErrImagePull: the " +
			"registry does not let the node have it",
		`Get "https://ada:hunter2@r.example.com/v2/": dial tcp: lookup r.example.com: no such host`: "ErrImagePull: the " +
			"registry cannot be reached",
		`dial tcp 192.0.2.1:443: connect: connection refused`: "ErrImagePull: the registry " +
			"cannot be reached",
		`tls: failed to verify certificate: x509: certificate signed by unknown authority`: "ErrImagePull: the node does " +
			"not trust the registry",
		`unexpected status: 429 Too Many Requests - hunter2`:         "ErrImagePull: the registry has had too many requests",
		`write /var/lib/containerd/hunter2: no space left on device`: "ErrImagePull: the node has no room for it",
		`rpc error: code = NotFound desc = failed to pull and unpack image "example.com/forbidden/certificates:401": no ` +
			`match for platform in manifest: not found`: "ErrImagePull: it is for another kind of machine",
	} {
		if got := waitingWith("ErrImagePull", message); got != want {
			t.Errorf("%q is told as %q, want %q", message, got, want)
		}
	}
}

// The name of an image is no word of who answers, however short or telling it is.
func TestTheNameOfAnImageIsNotReadAsAProblem(t *testing.T) {
	const (
		refused     = "ErrImagePull: the registry does not let the node have it"
		unknown     = "ErrImagePull: the registry has no such image"
		untrusted   = "ErrImagePull: the node does not trust the registry"
		unreachable = "ErrImagePull: the registry cannot be reached"
		failing     = "ErrImagePull: the registry has an error of its own"
	)
	for _, c := range []struct{ image, message, want string }{
		{"r.example.com/a:1", `failed to resolve "r.example.com/a:1": unexpected status from HEAD request to ` +
			`https://r.example.com/v2/a/manifests/1: 401 unauthorized`, refused},
		{"r.example.com/a:1", `failed to authorize "r.example.com/a:1": unauthorized`, refused},
		{"r.example.com/x", `failed to do request: Head "https://r.example.com/v2/x/manifests/latest": x509: signed by ` +
			`unknown authority`, untrusted},
		{"forbidden.example.com/a", `failed to do request: Head "https://forbidden.example.com/v2/a/manifests/latest": ` +
			`dial tcp: lookup forbidden.example.com on 192.0.2.1:53: no such host`, unreachable},
		{"Denied.example.com/a", `pinging container registry Denied.example.com: Get "https://Denied.example.com/v2/": ` +
			`net/http: request canceled (Client.Timeout exceeded while awaiting headers)`, unreachable},
		{"example.com:401/a", `failed to do request: Head "https://example.com:401/v2/a/manifests/latest": dial tcp ` +
			`192.0.2.1:401: connect: connection refused`, unreachable},
		{"example.com:403/a", `failed to do request: Head "https://example.com:403/v2/a/manifests/latest": dial tcp ` +
			`[2001:db8::1]:403: i/o timeout`, unreachable},
		{"denied", `Back-off pulling image "denied": ErrImagePull: manifest unknown`, unknown},
		{"denied:401", `failed to pull and unpack image "docker.io/library/denied:401": docker.io/library/denied:401: not ` +
			`found`, unknown},
		{"example.com/a:403", `initializing source docker://example.com/a:403: reading manifest 403 in example.com/a: ` +
			`manifest unknown`, unknown},
		{"example.com/a@sha256:0f", `failed to resolve "example.com/a@sha256:0f": unexpected status from HEAD request to ` +
			`https://example.com/v2/a/manifests/sha256:0f: 500 Internal Server Error`, failing},
		{"example.com/a", `received unexpected HTTP status: 502 Bad Gateway: hunter2`, failing},
		{"example.com/a", `unexpected status code [manifests latest]: 503 Service Unavailable`, failing},
		{"example.com/a", `unexpected status from GET request to https://example.com/v2/a/blobs/sha256:0f: 504 Gateway ` +
			`Timeout`, failing},
		{"example.com/503:500", `failed to resolve "example.com/503:500": hunter2`, "ErrImagePull"},
	} {
		if got := whyWaiting(c.image, &corev1.ContainerStateWaiting{Reason: "ErrImagePull",
			Message: c.message}); got != c.want {
			t.Errorf("of %s, %q is told as %q, want %q", c.image, c.message, got, c.want)
		}
	}
}

func TestWhatANodeSaysOfItselfIsTold(t *testing.T) {
	for _, c := range []struct{ reason, message, want string }{
		{"ErrImageNeverPull", `Container image "a" is not present with pull policy of Never`,
			`ErrImageNeverPull: Container image "a" is not present with pull policy of Never`},
		{"CreateContainerConfigError", "secret \"c1\"\n\tnot found", `CreateContainerConfigError: secret "c1" not found`},
	} {
		if got := waitingWith(c.reason, c.message); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	long := waitingWith("RunContainerError", strings.Repeat(`failed to create task "é": `, 100)+"no such file")
	if len(long) > maxWaitingWords+len("RunContainerError: … ") || !strings.HasPrefix(long, "RunContainerError: … ") ||
		!strings.HasSuffix(long, "task \"é\": no such file") {
		t.Errorf("of a long one: %q", long)
	}
}

func TestATryThatFailsAsTheOneBeforeIsNoNews(t *testing.T) {
	for _, message := range []func(try int) string{
		func(try int) string { return fmt.Sprintf("back-off %dm%ds restarting", try, 10*try) },
		func(try int) string { return fmt.Sprintf("name is reserved for %064x", try) },
		func(try int) string { return fmt.Sprintf("denied: request %08x-0000-4000-8000-%012x", try, try) },
		func(try int) string { return fmt.Sprintf("current time 2030-01-02T12:00:%02dZ is after 2029", try) },
	} {
		for _, reason := range []string{"ErrImagePull", "CreateContainerError"} {
			if first, second := waitingWith(reason, message(1)), waitingWith(reason, message(12)); first != second {
				t.Errorf("%q, then %q", first, second)
			}
		}
	}
}
