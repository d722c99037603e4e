// Command fuzz runs all fuzz tests of the repository, one at a time, and counts their executions.
// It fails if a test fails. Go then adds the failing input to the test's seeds.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/parley-dev/parley/hack/test/testlist"
)

func main() {
	root := flag.String("root", ".", "directory of the repository")
	each := flag.Duration("time", time.Minute, "time for each test")
	only := flag.String("run", "", "regular expression of the tests to run; all by default")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *root, *each, *only, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, each time.Duration, only string, out io.Writer) error {
	matches, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	tests, err := testlist.Find(root)
	if err != nil {
		return err
	}
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	all, failed := 0, 0
	for _, test := range tests {
		if !strings.HasPrefix(test.Name, "Fuzz") || !matches.MatchString(test.Name) {
			continue
		}
		executions, err := fuzz(ctx, test, each, out)
		verdict := "ok"
		switch {
		case ctx.Err() != nil:
			verdict = "interrupted"
			failed++
		case err != nil:
			verdict = "FAILED"
			failed++
		}
		all += executions
		dir, _ := filepath.Rel(root, test.Dir)
		_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", test.Name, dir, executions, verdict)
		if ctx.Err() != nil {
			break
		}
	}
	_, _ = fmt.Fprintf(w, "all\t\t%d\n", all)
	_ = w.Flush()
	_, _ = fmt.Fprintf(out, "\n%s", &table)
	if failed > 0 {
		return fmt.Errorf("%d tests failed", failed)
	}
	return nil
}

func fuzz(ctx context.Context, test testlist.Test, each time.Duration, out io.Writer) (int, error) {
	_, _ = fmt.Fprintf(out, "%s in %s\n", test.Name, test.Dir)
	// The test may be in another module, so go test must run in its directory.
	cmd := exec.CommandContext(ctx, "go", "test", ".", "-run=^$", "-fuzz=^"+test.Name+"$", "-fuzztime="+each.String(),
		"-fuzzminimizetime=10x")
	cmd.Dir = test.Dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	err := cmd.Run()
	if err != nil && ctx.Err() == nil {
		_, _ = out.Write(output.Bytes())
	}
	executions := countExecutions(output.String())
	if err == nil && executions == 0 {
		_, _ = out.Write(output.Bytes())
		err = fmt.Errorf("%s ran nothing", test.Name)
	}
	return executions, err
}

var progress = regexp.MustCompile(`(?m)^fuzz: elapsed: .*, execs: (\d+)`)

func countExecutions(output string) int {
	reports := progress.FindAllStringSubmatch(output, -1)
	if len(reports) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(reports[len(reports)-1][1])
	return n
}
