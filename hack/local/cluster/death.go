package cluster

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"syscall"
)

// Death is the error for a process that ended although the supervisor did not stop it.
type Death struct {
	Name   string
	Log    string
	Status syscall.WaitStatus
}

func (d *Death) Error() string {
	text := fmt.Sprintf("%s died (%s); its log is %s", d.Name, d.how(), d.Log)
	// A process that was killed with SIGKILL could not log a reason, so do not quote its log.
	if d.Status.Signaled() && d.Status.Signal() == syscall.SIGKILL {
		return text
	}
	if line := lastError(d.Log); line != "" {
		text += ", which ends with: " + line
	}
	return text
}

func (d *Death) how() string {
	if !d.Status.Signaled() {
		return fmt.Sprintf("exit status %d", d.Status.ExitStatus())
	}
	if d.Status.Signal() == syscall.SIGKILL {
		return "killed by SIGKILL: by kill -9 or because memory ran out"
	}
	return "signal: " + d.Status.Signal().String()
}

// errorLine matches klog's severity letters, the levels of structured logs, and the error lines
// that Go and command-line programs print before they exit.
var errorLine = regexp.MustCompile(`(?i)^[EF]\d{4} |"level":"(error|fatal|panic|dpanic)"|\b(error|fatal|panic)\b`)

const (
	tailBytes = 64 << 10
	lineBytes = 300
)

// lastError searches a log for the last line that looks like an error. If there is none, it returns
// the last line. It truncates long lines.
func lastError(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tailBytes {
		_, _ = file.Seek(-tailBytes, io.SeekEnd)
	}
	tail, _ := io.ReadAll(file)
	var last, lastError []byte
	for line := range bytes.Lines(tail) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		last = line
		if errorLine.Match(line) {
			lastError = line
		}
	}
	if lastError == nil {
		lastError = last
	}
	if len(lastError) > lineBytes {
		lastError = append(bytes.Clone(lastError[:lineBytes]), "..."...)
	}
	return string(lastError)
}
