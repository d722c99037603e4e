package e2e

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Highest allowed ratios of start times. maxWarmMedian (p50) and maxWarmLast (p99) compare a warm
// start with a bare pod. maxWake compares a wake with a warm start over HTTP, because a wake begins
// with a message over HTTP.
const (
	maxWarmMedian = 0.2
	maxWarmLast   = 0.5
	maxWake       = 1.2
)

func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(len(all)-1, len(all)*p/100)]
}

func (s *starts) report() {
	for round, heading := range []string{"one at a time", fmt.Sprintf("%d at a time", crowdSize)} {
		var table strings.Builder
		w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
		_, _ = fmt.Fprintf(w, "%s\tRUNNING p50\tp99\t÷ bare\t÷ bare p99\tfirst tool call p50\tp99\t\n", heading)
		bare := s.taken[kindBare][round].running
		ratio := func(a []time.Duration, b []time.Duration, p int) float64 {
			return float64(percentile(a, p)) / float64(percentile(b, p))
		}
		for _, k := range s.kinds() {
			taken := s.taken[k.name][round]
			ms := func(all []time.Duration, p int) string {
				if len(all) == 0 {
					return "—"
				}
				return fmt.Sprintf("%d ms", percentile(all, p).Milliseconds())
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t%.2f\t%s\t%s\t\n", k.name, ms(taken.running, 50), ms(taken.running, 99),
				ratio(taken.running, bare, 50), ratio(taken.running, bare, 99), ms(taken.called, 50), ms(taken.called, 99))
		}
		_ = w.Flush()
		s.Logf("%d samples each\n%s", s.samples, table.String())
		warm := s.taken[kindWarm][round].running
		for _, required := range []struct {
			what     string
			is, most float64
		}{
			{kindWarm + ": p50 ÷ bare pod", ratio(warm, bare, 50), maxWarmMedian},
			{kindWarm + ": p99 ÷ bare pod", ratio(warm, bare, 99), maxWarmLast},
			{kindRepo + ": p50 ÷ bare pod", ratio(s.taken[kindRepo][round].running, bare, 50), maxWarmMedian},
			{kindRepo + ": p99 ÷ bare pod", ratio(s.taken[kindRepo][round].running, bare, 99), maxWarmLast},
			{kindWake + ": p50 ÷ warm start over HTTP",
				ratio(s.taken[kindWake][round].running, s.taken[kindHTTP][round].running, 50), maxWake},
		} {
			if required.is > required.most {
				s.Errorf("%s, %s: %.2f, want at most %.2f", heading, required.what, required.is, required.most)
			}
		}
	}
}
