package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

// diff is `kubectl parley diff`.
type diff struct {
	*plugin
	talking
}

func newDiff(p *plugin) *cobra.Command {
	d := &diff{plugin: p}
	cmd := p.named(&cobra.Command{
		Use:   "diff NAME",
		Short: "Show what a session changed in its repository",
		Long: `Show the difference to the commit that a session began with, files that are not committed included, as
git apply takes it.

Of a session that does not run it is what the session left when it ended.`,
	}, d.run)
	d.addFlags(cmd)
	return cmd
}

func (d *diff) run(ctx context.Context, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	user, err := d.as(ctx, d.plugin, name)
	if err != nil {
		return err
	}
	response, err := user.do(ctx, http.MethodGet, "/api/conversations/"+name+"/git/patch", nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if !isTerminal(d.Out) {
		_, err := io.Copy(d.Out, response.Body)
		return err
	}
	return show(d.Out, response.Body)
}

// show a patch to somebody who reads it.
func show(out io.Writer, patch io.Reader) error {
	lines := bufio.NewReader(patch)
	for {
		line, err := lines.ReadString('\n')
		text := strings.TrimSuffix(line, "\n")
		_, failed := io.WriteString(out, colour(printable(text))+line[len(text):])
		switch {
		case errors.Is(err, io.EOF):
			return failed
		case err != nil || failed != nil:
			return errors.Join(err, failed)
		}
	}
}

// colour a line as git does.
func colour(line string) string {
	for prefix, code := range map[string]string{"+++": "1", "---": "1", "diff ": "1", "@@": "36"} {
		if strings.HasPrefix(line, prefix) {
			return "\x1b[" + code + "m" + line + "\x1b[0m"
		}
	}
	switch {
	case strings.HasPrefix(line, "+"):
		return "\x1b[32m" + line + "\x1b[0m"
	case strings.HasPrefix(line, "-"):
		return "\x1b[31m" + line + "\x1b[0m"
	}
	return line
}
