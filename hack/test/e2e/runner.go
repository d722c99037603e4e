package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// check is one check. Its name is a sentence.
type check struct {
	name string
	run  func(*t)
}

// t is the context of a check. Like testing.T, it ends the check with fatalf.
type t struct {
	*inside
	ctx       context.Context
	failed    []string
	notes     []string
	namespace string // of the check, once it created one
}

// checkTimeout bounds a check. The longest takes two minutes on a fast machine.
const checkTimeout = 8 * time.Minute

func (t *t) errorf(format string, args ...any) {
	t.failed = append(t.failed, fmt.Sprintf(format, args...))
}

func (t *t) fatalf(format string, args ...any) {
	t.errorf(format, args...)
	runtime.Goexit()
}

func (t *t) must(err error) {
	if err != nil {
		t.fatalf("%v", err)
	}
}

// notef adds a figure that is printed with the result.
func (t *t) notef(format string, args ...any) {
	t.notes = append(t.notes, fmt.Sprintf(format, args...))
}

// check runs the checks, one after the other, and prints a line for each.
func (n *inside) check(ctx context.Context) error {
	passed, failed := 0, 0
	for _, c := range n.selected() {
		began := time.Now()
		result := n.runCheck(ctx, c)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		verdict := "PASS"
		if len(result.failed) > 0 {
			verdict = "FAIL"
			failed++
		} else {
			passed++
		}
		fmt.Printf("%s  %s (%.1fs)\n", verdict, c.name, time.Since(began).Seconds())
		for _, line := range append(result.notes, result.failed...) {
			fmt.Println("      " + strings.ReplaceAll(line, "\n", "\n      "))
		}
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		return errors.New("not all checks passed")
	}
	return nil
}

func (n *inside) runCheck(ctx context.Context, c check) *t {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	t := &t{inside: n, ctx: ctx}
	done := make(chan struct{})
	go func() { // a goroutine that fatalf can end
		defer close(done)
		c.run(t)
	}()
	<-done
	t.cleanUp()
	return t
}
