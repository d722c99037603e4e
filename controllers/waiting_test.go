package controllers

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func waitingWith(message string) string {
	return whyWaiting(&corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: message})
}

func TestWhyAnImageDoesNotComeIsTold(t *testing.T) {
	for message, want := range map[string]string{
		"": "ErrImagePull",
		`rpc error: code = NotFound desc = "example.com/base:1": not found`: `ErrImagePull: rpc error: code = NotFound desc = "example.com/base:1": not found`,
		"two\n\tlines": "ErrImagePull: two lines",
		`Get "https://ada:hunter2@r.example.com/v2/": EOF`:                                            `ErrImagePull: Get "https://r.example.com/v2/": EOF`,
		`from GET request to https://cdn.example.com/blob?X-Amz-Signature=hunter2&x=y: 403 Forbidden`: `ErrImagePull: from GET request to https://cdn.example.com/blob 403 Forbidden`,
		`Get "https://r.example.com/v2/?token=hunter2": dial tcp: lookup r.example.com: no such host`: `ErrImagePull: Get "https://r.example.com/v2/": dial tcp: lookup r.example.com: no such host`,
		`dial tcp 192.0.2.1:443: connect: connection refused`:                                         `ErrImagePull: dial tcp 192.0.2.1:443: connect: connection refused`,
	} {
		if got := waitingWith(message); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	long := waitingWith(strings.Repeat(`failed to pull and unpack image "example.com/é": `, 100) + "401 Unauthorized")
	if len(long) > maxWaitingWords+len("ErrImagePull: … ") || !strings.HasPrefix(long, "ErrImagePull: … ") || !strings.HasSuffix(long, "example.com/é\": 401 Unauthorized") {
		t.Errorf("of a long one: %q", long)
	}
}

func TestATryThatFailsAsTheOneBeforeIsNoNews(t *testing.T) {
	for _, message := range []func(try int) string{
		func(try int) string {
			return fmt.Sprintf("read tcp 10.0.0.5:%d->192.0.2.1:443: i/o timeout", 40000+try)
		},
		func(try int) string { return fmt.Sprintf("back-off %dm%ds restarting", try, 10*try) },
		func(try int) string { return fmt.Sprintf("name is reserved for %064x", try) },
		func(try int) string { return fmt.Sprintf("denied: request %08x-0000-4000-8000-%012x", try, try) },
		func(try int) string { return fmt.Sprintf("current time 2030-01-02T12:00:%02dZ is after 2029", try) },
	} {
		if first, second := waitingWith(message(1)), waitingWith(message(12)); first != second {
			t.Errorf("%q, then %q", first, second)
		}
	}
}
