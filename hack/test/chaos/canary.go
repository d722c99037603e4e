package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// canary is the prefix of every key that a client sends. If the canary is found outside of a
// Secret's data, a key has leaked.
const canary = "sk-chaoscanary7"

// encodedCanaries are the forms of the canary in a text: plain, or in base64 at any offset.
var encodedCanaries = func() [][]byte {
	all := [][]byte{[]byte(canary)}
	for before := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), canary...))
		all = append(all, []byte(encoded[(before*8+5)/6:(before+len(canary))*8/6]))
	}
	return all
}()

// secretValues are keys that the operator generated.
type secretValues [][]byte

// findKey returns the position of a key in a text, or a negative number.
func (s secretValues) findKey(text []byte) int {
	for _, lists := range [][][]byte{encodedCanaries, s} {
		for _, value := range lists {
			if at := bytes.Index(text, value); at >= 0 {
				return at
			}
		}
	}
	return -1
}

func (r *report) checkForKeys(text []byte, where string) {
	r.mu.Lock()
	made := r.made
	r.looked++
	r.mu.Unlock()
	if at := made.findKey(text); at >= 0 {
		r.violation(checkKeys, "%s has a key at byte %d", where, at)
	}
}

func (r *report) countScrape() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scrapes++
}

func (r *report) addKeys(values ...[]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, values...)
}

// crashPattern matches the output of a Go process that panics.
var crashPattern = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*)$|"level":"(?:panic|dpanic)".*`)

func (i *installation) checkLogs(r *report, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return err
	}
	size := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		size += len(text)
		name := filepath.Base(file)
		r.checkForKeys(text, "log "+name)
		for _, line := range crashPattern.FindAll(text, maxShown) {
			r.violation(checkProcesses, "%s: %s", name, line)
		}
	}
	r.note(checkProcesses, "%d logs of %d KiB", len(files), size>>10)
	r.mu.Lock()
	looked, scrapes := r.looked, r.scrapes
	r.mu.Unlock()
	r.note(checkKeys, "%d texts: HTTP answers, %d metrics, logs, all versions of all objects", looked, scrapes)
	if scrapes == 0 {
		return fmt.Errorf("no metrics were read")
	}
	return nil
}
