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
