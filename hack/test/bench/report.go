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

type report struct {
	CPUs int `json:"cpus"`
	// Load is the load average before the first measurement. It shows whether other programs used
	// the machine.
	Load    string   `json:"load"`
	Figures []figure `json:"figures"`
}

// figure is one line of the table.
type figure struct {
	Part string `json:"part"`
	What string `json:"what"`
	Unit string `json:"unit,omitempty"`
	// Parley is the measured value of Parley. If there are several values, it is their median.
	Parley    float64    `json:"parley"`
	Range     *extent    `json:"range,omitempty"`
	Baselines []baseline `json:"beside,omitempty"`
}

// baseline is a value that Parley is compared with. Ratio is Parley's value divided by the
// baseline.
type baseline struct {
	Name  string   `json:"name"`
	Value float64  `json:"value"`
	Range *extent  `json:"range,omitempty"`
	Ratio *float64 `json:"ratio,omitempty"`
}

// extent is the minimum and maximum of several values.
type extent [2]float64

func newReport() *report {
	load, _ := os.ReadFile("/proc/loadavg")
	return &report{CPUs: runtime.NumCPU(), Load: strings.Join(strings.Fields(string(load))[:3], " ")}
}

func (r *report) add(part, what, unit string, value float64) {
	r.Figures = append(r.Figures, figure{Part: part, What: what, Unit: unit, Parley: value})
}

func (r *report) compare(part, what, unit string, value, other float64) {
	r.Figures = append(r.Figures, figure{Part: part, What: what, Unit: unit, Parley: value, Baselines: []baseline{
		{Name: otherOf(part), Value: other, Ratio: ratioOf(value, other)},
	}})
}

// turns contains one subject's values, one per round.
type turns struct {
	name   string
	values []float64
}

// compareTurns compares the first subject, Parley, with the other subjects.
func (r *report) compareTurns(part, what, unit string, all []turns) {
	f := figure{Part: part, What: what, Unit: unit}
	f.Parley, f.Range = medianOf(all[0].values)
	for _, other := range all[1:] {
		value, extent := medianOf(other.values)
		f.Baselines = append(f.Baselines,
			baseline{Name: other.name, Value: value, Range: extent, Ratio: ratioOf(f.Parley, value)})
	}
	r.Figures = append(r.Figures, f)
}

func ratioOf(value, baseline float64) *float64 {
	if baseline <= 0 {
		return nil
	}
	ratio := value / baseline
	return &ratio
}

// medianOf returns the median and the range of values. It needs at least one value.
func medianOf(values []float64) (median float64, all *extent) {
	values = slices.Sorted(slices.Values(values))
	last := len(values) - 1
	return (values[last/2] + values[(last+1)/2]) / 2, &extent{values[0], values[last]}
}

func otherOf(part string) string {
	name, _, _ := strings.Cut(part, ":")
	if name == partFacade {
		return "created directly"
	}
	return barePods
}

func (r *report) print(out io.Writer) {
	fmt.Fprintf(out, "%d CPUs, load average at the start %s; a fake kubelet reports each pod as running at once, "+
		"except in the part session\n",
		r.CPUs, r.Load)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	last := ""
	for _, f := range r.Figures {
		if f.Part != last {
			fmt.Fprintf(table, "\t\t\t\t\t\n%s\t\tParley\t", pad("# "+f.Part))
			for _, other := range f.Baselines {
				fmt.Fprintf(table, "%s\tratio\t", other.Name)
			}
			fmt.Fprintln(table)
			last = f.Part
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t", pad(f.What), f.Unit, formatRange(f.Parley, f.Range))
		for _, other := range f.Baselines {
			fmt.Fprintf(table, "%s\t%s\t", formatRange(other.Value, other.Range), number(other.Ratio))
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush()
}

// pad adds spaces after a text of the first column. The table aligns all columns to the right, but
// the first column must look aligned to the left.
func pad(text string) string { return fmt.Sprintf("%-80s", text) }

// formatRange formats a number and its range. It omits the range if all values are equal.
func formatRange(value float64, all *extent) string {
	if all == nil || all[0] == all[1] {
		return number(&value)
	}
	return fmt.Sprintf("%s (%s–%s)", number(&value), number(&all[0]), number(&all[1]))
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
