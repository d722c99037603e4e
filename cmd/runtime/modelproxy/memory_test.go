package modelproxy

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"testing"
)

// The answer of 17 MiB is one event with one string, and arrives in small parts.
func TestALargeAnswerIsReadInLittleMemory(t *testing.T) {
	whole, stream := newMeter(chat, false, &entry{}, http.Header{}), newMeter(chat, true, &entry{}, http.Header{})
	filter := &usageFilter{out: io.Discard}
	for name, read := range map[string]func([]byte){
		"a meter":             func(text []byte) { whole.read(text) },
		"a meter of events":   func(text []byte) { stream.read(text) },
		"the filter of usage": func(text []byte) { _, _ = filter.Write(text) },
	} {
		t.Run(name, func(t *testing.T) {
			part := bytes.Repeat([]byte("x"), 1<<10)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			read([]byte(`data: {"usage":{"text":"`))
			for range 17 << 10 {
				read(part)
			}
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
				t.Errorf("it allocated %d KiB", allocated>>10)
			}
		})
	}
}
