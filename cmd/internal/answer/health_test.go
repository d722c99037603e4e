package answer

import (
	"context"
	"errors"
	"testing"
)

func TestReadinessProbesAreCached(t *testing.T) {
	checks := 0
	h := &Health{Check: func(context.Context) error { checks++; return nil }}
	for range 100 {
		_ = h.Err()
	}
	if checks != 1 {
		t.Errorf("checked %d times", checks)
	}
	h.checked = h.checked.Add(-2 * readyLasts)
	h.Check = func(context.Context) error { return errors.New("away") }
	if err := h.Err(); err == nil {
		t.Error("a stale result was returned")
	}
}

func TestAReadyProgramStaysReadyIfALaterCheckFails(t *testing.T) {
	err := errors.New("not yet")
	h := &Health{Check: func(context.Context) error { return err }}
	if h.Ready() {
		t.Error("ready before the first successful check")
	}
	for _, err = range []error{nil, errors.New("away")} {
		h.checked = h.checked.Add(-2 * readyLasts)
		if !h.Ready() {
			t.Errorf("not ready although a check succeeded; now the error is %v", err)
		}
	}
	if h.checked = h.checked.Add(-2 * readyLasts); h.Err() == nil {
		t.Error("the failure is not reported")
	}
}
