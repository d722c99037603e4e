package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is all that was measured.
type report struct {
	CPUs int `json:"cpus"`
	// Load is the machine's load average when it began: what else ran then.
	Load    string   `json:"load"`
	Figures []figure `json:"figures"`
}

// figure is one line of the table.
type figure struct {
	Part string `json:"part"`
	What string `json:"what"`
	Unit string `json:"unit,omitempty"`
	// Parley is the figure, Beside what it is compared with, if there is that.
	Parley float64  `json:"parley"`
	Beside *float64 `json:"beside,omitempty"`
	Ratio  *float64 `json:"ratio,omitempty"`
}

func newReport() *report {
	load, _ := os.ReadFile("/proc/loadavg")
	return &report{CPUs: runtime.NumCPU(), Load: strings.Join(strings.Fields(string(load))[:3], " ")}
}

func (r *report) add(part, what, unit string, value float64) {
	r.Figures = append(r.Figures, figure{Part: part, What: what, Unit: unit, Parley: value})
}

func (r *report) compare(part, what, unit string, value, beside float64) {
	f := figure{Part: part, What: what, Unit: unit, Parley: value, Beside: &beside}
	if beside > 0 {
		ratio := value / beside
		f.Ratio = &ratio
	}
	r.Figures = append(r.Figures, f)
}

// besides say what the second column of a part is.
var besides = map[string]string{partFacade: "created directly", partSizes: "of 100 B"}

func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "%d CPUs, load average at the start %s; the kubelet is fake and says at once that a pod runs\n", r.CPUs, r.Load)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	last := ""
	for _, f := range r.Figures {
		if part, _, _ := strings.Cut(f.Part, ":"); f.Part != last {
			beside := besides[part]
			if beside == "" {
				beside = "bare pods"
			}
			fmt.Fprintf(table, "\t\t\t\t\t\n%s\t\tParley\t%s\tratio\t\n", pad("# "+f.Part), beside)
			last = f.Part
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t\n", pad(f.What), f.Unit, number(&f.Parley), number(f.Beside), number(f.Ratio))
	}
	_ = table.Flush()
}

// pad aligns the first column to the left, where the others are numbers.
func pad(text string) string { return fmt.Sprintf("%-80s", text) }

func number(value *float64) string {
	switch {
	case value == nil:
		return ""
	case *value >= 1000:
		return fmt.Sprintf("%.0f", *value)
	default:
		return fmt.Sprintf("%.2f", *value)
	}
}

func (r *report) write(file string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(content, '\n'), 0o600)
}

func percentile(took []time.Duration, p int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, len(took)*p/100)]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
