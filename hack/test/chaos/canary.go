package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// canary begins every key that is ever handed over. Where it is found outside of a Secret's data, a
// key is readable.
const canary = "sk-chaoscanary7"

// sightings are what a text with a canary has in it: as it is, or encoded, wherever in a text the
// canary stands.
var sightings = func() [][]byte {
	all := [][]byte{[]byte(canary)}
	for before := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString(append(make([]byte, before), canary...))
		all = append(all, []byte(encoded[(before*8+5)/6:(before+len(canary))*8/6]))
	}
	return all
}()

// secretValues are keys that nobody handed over: those that the operator made.
type secretValues [][]byte

// findKey is where a key stands in a text; negative if there is none.
func (s secretValues) findKey(text []byte) int {
	for _, lists := range [][][]byte{sightings, s} {
		for _, value := range lists {
			if at := bytes.Index(text, value); at >= 0 {
				return at
			}
		}
	}
	return -1
}

// lookForKeys in a text that must have none.
func (r *report) lookForKeys(text []byte, where string) {
	r.mu.Lock()
	made := r.made
	r.looked++
	r.mu.Unlock()
	if at := made.findKey(text); at >= 0 {
		r.broke(checkKeys, "%s has a key at byte %d", where, at)
	}
}

// scraped metrics once more.
func (r *report) scraped() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scrapes++
}

// knowKeys that the operator made.
func (r *report) knowKeys(values ...[]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.made = append(r.made, values...)
}

// crash is what Go prints when a process gives up.
var crash = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*)$|"level":"(?:panic|dpanic)".*`)

// checkLogs looks for keys and crashes in all that was ever printed.
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
		r.lookForKeys(text, "log "+name)
		for _, line := range crash.FindAll(text, maxShown) {
			r.broke(checkProcesses, "%s: %s", name, line)
		}
	}
	r.note(checkProcesses, "%d logs of %d KiB", len(files), size>>10)
	r.mu.Lock()
	looked, scrapes := r.looked, r.scrapes
	r.mu.Unlock()
	r.note(checkKeys, "%d texts: HTTP answers, %d metrics, logs, all versions of all objects", looked, scrapes)
	if scrapes == 0 {
		return fmt.Errorf("no metrics were ever read")
	}
	return nil
}
