package main

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"
)

// Without a terminal a line now and then is enough to show that it lives.
const logInterval = 15 * time.Second

// progress shows what is being done, how far it is and how long it has taken:
// one redrawn line on a terminal, a line every logInterval elsewhere.
type progress struct {
	out      *os.File
	terminal bool
	started  time.Time
	stop     chan struct{}
	ended    sync.WaitGroup

	mu   sync.Mutex
	text string
}

func newProgress(out *os.File) *progress {
	p := &progress{out: out, started: time.Now(), stop: make(chan struct{})}
	if info, err := out.Stat(); err == nil {
		p.terminal = info.Mode()&os.ModeCharDevice != 0
	}
	interval := logInterval
	if p.terminal {
		interval = 200 * time.Millisecond
	}
	p.ended.Go(func() { p.redraw(interval) })
	return p
}

func (p *progress) phase(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = text
}

func (p *progress) count(text string, done, total int) {
	p.phase(fmt.Sprintf("%s, %d of %d", text, done, total))
}

// end stops the redrawing and leaves the line empty.
func (p *progress) end() {
	select {
	case <-p.stop:
		return
	default:
	}
	close(p.stop)
	p.ended.Wait()
	if p.terminal {
		fmt.Fprint(p.out, "\r\033[K")
	}
}

func (p *progress) done(text string) {
	p.end()
	fmt.Fprintf(p.out, "k8s: %s, in %s\n", text, p.elapsed())
}

func (p *progress) redraw(interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.draw()
		}
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("k8s: %s, %s so far", p.text, p.elapsed())
	if p.terminal {
		fmt.Fprintf(p.out, "\r\033[K%s", line)
		return
	}
	fmt.Fprintln(p.out, line)
}

func (p *progress) elapsed() time.Duration { return time.Since(p.started).Round(time.Second) }

// lineWriter calls line for every line written to it.
type lineWriter struct {
	line    func([]byte)
	pending []byte
}

func (w *lineWriter) Write(data []byte) (int, error) {
	w.pending = append(w.pending, data...)
	for {
		line, rest, found := bytes.Cut(w.pending, []byte("\n"))
		if !found {
			return len(data), nil
		}
		w.emit(line)
		w.pending = rest
	}
}

// flush hands over a last line that no newline ended.
func (w *lineWriter) flush() {
	if len(w.pending) > 0 {
		w.emit(w.pending)
		w.pending = nil
	}
}

func (w *lineWriter) emit(line []byte) {
	if w.line != nil {
		w.line(line)
	}
}
