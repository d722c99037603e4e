package main

import (
	"context"
	"fmt"
	"time"
)

// measureSerial creates objects one at a time, and waits until each object has reached its final
// state. It alternates between pods and Conversations, so that other load on the machine affects
// both alike.
func measureSerial(ctx context.Context, b *bed, o options, r *report) error {
	took := map[string][]time.Duration{}
	subjects := []subject{b.barePods(), b.conversations()}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	var arrived []*arrivals
	for _, s := range subjects {
		a, err := watchArrivals(watching, s)
		if err != nil {
			return err
		}
		arrived = append(arrived, a)
	}
	if err := b.awaitIdle(ctx); err != nil {
		return err
	}
	for i := range warmUp + o.serial {
		for j, s := range subjects {
			name := fmt.Sprintf("serial-%05d", i)
			begin := time.Now()
			if err := s.create(ctx, name); err != nil {
				return err
			}
			at, err := arrived[j].awaitOne(ctx, name)
			if err != nil {
				return fmt.Errorf("%s %s: %w", s.name, name, err)
			}
			if i >= warmUp {
				took[s.name] = append(took[s.name], at.Sub(begin))
			}
		}
	}
	part := fmt.Sprintf("%s: %d one after the other, from the request until RUNNING, or ready", partSerial, o.serial)
	bare, ours := took[subjects[0].name], took[subjects[1].name]
	for _, p := range []int{50, 99} {
		r.compare(part, fmt.Sprintf("p%d", p), "ms", ms(percentile(ours, p)), ms(percentile(bare, p)))
	}
	return b.removePods(ctx)
}
