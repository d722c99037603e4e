package memory

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestMemoryStaysBelowTheLimitOfTheContainer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "memory.max")
	if got := memoryLimit(file); got != math.MaxInt64 {
		t.Errorf("without a container: %d", got)
	}
	for text, want := range map[string]int64{"536870912\n": 483183821, "max\n": math.MaxInt64, "": math.MaxInt64,
		"0\n": math.MaxInt64} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := memoryLimit(file); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
