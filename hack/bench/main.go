// Command bench measures what the facade adds to a request: the same Conversations are created over HTTP and directly with
// client-go, on the same API server with the same webhook, in turns.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

func main() {
	facade := flag.String("facade", "bin/facade", "the facade's program")
	rounds := flag.Int("rounds", 5, "rounds of each kind, in turns")
	each := flag.Duration("round", 2*time.Second, "how long a round takes")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	if err := run(*facade, *rounds, *each); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(program string, rounds int, each time.Duration) (err error) {
	key := rand.Text() + rand.Text()
	b, err := start(program, hashOf(key))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	overHTTP := b.httpCreator(key)
	directly, err := b.directCreator()
	if err != nil {
		return err
	}
	fmt.Println("POST /api/conversations against a create of the same object with client-go")
	fmt.Printf("%8s %10s %10s %10s %10s %8s %8s\n", "clients", "direct p50", "direct p99", "facade p50", "facade p99", "p50 x", "p99 x")
	for _, clients := range []int{1, 32} {
		// A first, short round of each is not counted: connections and caches.
		for _, warm := range []operation{directly, overHTTP} {
			if _, err := measure(warm, clients, each/4); err != nil {
				return err
			}
		}
		var direct, facade []time.Duration
		for range rounds {
			took, err := measure(directly, clients, each)
			if err != nil {
				return fmt.Errorf("directly: %w", err)
			}
			direct = append(direct, took...)
			if took, err = measure(overHTTP, clients, each); err != nil {
				return fmt.Errorf("over HTTP: %w", err)
			}
			facade = append(facade, took...)
		}
		d50, d99, f50, f99 := percentile(direct, 50), percentile(direct, 99), percentile(facade, 50), percentile(facade, 99)
		fmt.Printf("%8d %10s %10s %10s %10s %8.2f %8.2f   (%d and %d requests)\n", clients, rounded(d50), rounded(d99), rounded(f50), rounded(f99),
			float64(f50)/float64(d50), float64(f99)/float64(d99), len(direct), len(facade))
	}
	fmt.Println("GET /api/conversations/{id} with a key")
	get, err := b.httpGetter(key)
	if err != nil {
		return err
	}
	for _, clients := range []int{1, 32} {
		took, err := measure(get, clients, each)
		if err != nil {
			return fmt.Errorf("get: %w", err)
		}
		fmt.Printf("%8d clients: %.0f requests a second, p50 %s, p99 %s\n", clients, float64(len(took))/each.Seconds(), rounded(percentile(took, 50)), rounded(percentile(took, 99)))
	}
	return nil
}

// operation is what is measured.
type operation func(ctx context.Context) error

// measure repeats an operation in several clients at once and returns how long each took.
func measure(do operation, clients int, each time.Duration) ([]time.Duration, error) {
	var mu sync.Mutex
	var all []time.Duration
	var failure error
	end := time.Now().Add(each)
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			var took []time.Duration
			var err error
			for err == nil && time.Now().Before(end) {
				begin := time.Now()
				err = do(context.Background())
				took = append(took, time.Since(begin))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took...)
			failure = errors.Join(failure, err)
		})
	}
	group.Wait()
	return all, failure
}

func percentile(took []time.Duration, p int) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, len(took)*p/100)]
}

func rounded(d time.Duration) string { return d.Round(10 * time.Microsecond).String() }

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
