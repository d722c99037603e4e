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
	// Least is the figure of the least objects that take the same requests.
	Least      *float64 `json:"least,omitempty"`
	LeastRatio *float64 `json:"leastRatio,omitempty"`
	// The ranges of what was measured several times. The figures are the medians then.
	ParleyRange *extent `json:"parleyRange,omitempty"`
	BesideRange *extent `json:"besideRange,omitempty"`
	LeastRange  *extent `json:"leastRange,omitempty"`
}

// extent is the least and the most of several figures.
type extent [2]float64

func newReport() *report {
	load, _ := os.ReadFile("/proc/loadavg")
	return &report{CPUs: runtime.NumCPU(), Load: strings.Join(strings.Fields(string(load))[:3], " ")}
}

func (r *report) add(part, what, unit string, value float64) {
	r.Figures = append(r.Figures, figure{Part: part, What: what, Unit: unit, Parley: value})
}

func (r *report) compare(part, what, unit string, value, beside float64) {
	r.Figures = append(r.Figures, figure{Part: part, What: what, Unit: unit, Parley: value, Beside: &beside, Ratio: ratioOf(value, beside)})
}

// compareTurns compares what was measured several times.
func (r *report) compareTurns(part, what, unit string, values, beside, least []float64) {
	f := figure{Part: part, What: what, Unit: unit, Beside: new(float64), Least: new(float64)}
	f.Parley, f.ParleyRange = middle(values)
	*f.Beside, f.BesideRange = middle(beside)
	*f.Least, f.LeastRange = middle(least)
	f.Ratio, f.LeastRatio = ratioOf(f.Parley, *f.Beside), ratioOf(f.Parley, *f.Least)
	r.Figures = append(r.Figures, f)
}

func ratioOf(value, beside float64) *float64 {
	if beside <= 0 {
		return nil
	}
	ratio := value / beside
	return &ratio
}

// middle is the median of at least one value, and the range.
func middle(values []float64) (median float64, all *extent) {
	values = slices.Sorted(slices.Values(values))
	last := len(values) - 1
	return (values[last/2] + values[(last+1)/2]) / 2, &extent{values[0], values[last]}
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
				beside = barePods
			}
			fmt.Fprintf(table, "\t\t\t\t\t\n%s\t\tParley\t%s\tratio\t", pad("# "+f.Part), beside)
			if f.Least != nil {
				fmt.Fprintf(table, "%s\tratio\t", leastObjects)
			}
			fmt.Fprintln(table)
			last = f.Part
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t", pad(f.What), f.Unit, ranging(&f.Parley, f.ParleyRange), ranging(f.Beside, f.BesideRange), number(f.Ratio))
		if f.Least != nil {
			fmt.Fprintf(table, "%s\t%s\t", ranging(f.Least, f.LeastRange), number(f.LeastRatio))
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush()
}

// pad aligns the first column to the left, where the others are numbers.
func pad(text string) string { return fmt.Sprintf("%-80s", text) }

// ranging is a number, and the range where it is one.
func ranging(value *float64, all *extent) string {
	if all == nil || all[0] == all[1] {
		return number(value)
	}
	return fmt.Sprintf("%s (%s–%s)", number(value), number(&all[0]), number(&all[1]))
}

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
