package controllers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func waitingWith(reason, message string) string {
	return whyWaiting("example.com/forbidden/certificates:401", &corev1.ContainerStateWaiting{Reason: reason, Message: message})
}

// What a registry answers is told in words of ours: who names an image names who answers.
func TestWhyAnImageDoesNotComeIsTold(t *testing.T) {
	for message, want := range map[string]string{
		`HEAD "https://example.com/v2/forbidden/certificates/manifests/401": EOF`: "ErrImagePull",
		"": "ErrImagePull",
		`failed to resolve "example.com/forbidden/certificates:401": hunter2`:                                                                                      "ErrImagePull",
		`rpc error: code = NotFound desc = failed to pull and unpack image "example.com/base:1": hunter2: not found`:                                               "ErrImagePull: the registry has no such image",
		`failed to authorize: unexpected status from GET request to https://r.example.com/token?x=hunter2: 401 Unauthorized`:                                       "ErrImagePull: the registry does not let the node have it",
		`unexpected status from HEAD request to https://r.example.com/v2/hunter2: 403 Forbidden`:                                                                   "ErrImagePull: the registry does not let the node have it",
		`pull access denied, repository does not exist or may require authorization`:                                                                               "ErrImagePull: the registry does not let the node have it",
		`Get "https://ada:hunter2@r.example.com/v2/": dial tcp: lookup r.example.com: no such host`:                                                                "ErrImagePull: the registry cannot be reached",
		`dial tcp 192.0.2.1:443: connect: connection refused`:                                                                                                      "ErrImagePull: the registry cannot be reached",
		`tls: failed to verify certificate: x509: certificate signed by unknown authority`:                                                                         "ErrImagePull: the node does not trust the registry",
		`unexpected status: 429 Too Many Requests - hunter2`:                                                                                                       "ErrImagePull: the registry has had too many requests",
		`write /var/lib/containerd/hunter2: no space left on device`:                                                                                               "ErrImagePull: the node has no room for it",
		`rpc error: code = NotFound desc = failed to pull and unpack image "example.com/forbidden/certificates:401": no match for platform in manifest: not found`: "ErrImagePull: it is for another kind of machine",
	} {
		if got := waitingWith("ErrImagePull", message); got != want {
			t.Errorf("%q is told as %q, want %q", message, got, want)
		}
	}
}

func TestWhatANodeSaysOfItselfIsTold(t *testing.T) {
	for _, c := range []struct{ reason, message, want string }{
		{"ErrImageNeverPull", `Container image "a" is not present with pull policy of Never`, `ErrImageNeverPull: Container image "a" is not present with pull policy of Never`},
		{"CreateContainerConfigError", "secret \"c1\"\n\tnot found", `CreateContainerConfigError: secret "c1" not found`},
	} {
		if got := waitingWith(c.reason, c.message); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	long := waitingWith("RunContainerError", strings.Repeat(`failed to create task "é": `, 100)+"no such file")
	if len(long) > maxWaitingWords+len("RunContainerError: … ") || !strings.HasPrefix(long, "RunContainerError: … ") || !strings.HasSuffix(long, "task \"é\": no such file") {
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
