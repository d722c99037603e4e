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

func newDiff(p *plugin) *cobra.Command {
	d := &facadeFlags{}
	cmd := p.named(&cobra.Command{
		Use:   "diff NAME",
		Short: "Print the changes that a session made to its repository",
		Long: `Print all changes since the start of a session, committed or not, as a patch for git apply.

If the session is not running, the patch contains the changes at its end.`,
	}, d.diff)
	d.addFlags(cmd)
	return cmd
}

func (f *facadeFlags) diff(ctx context.Context, c *cluster, name string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	user, err := f.connect(ctx, c, name, silent)
	if err != nil {
		return err
	}
	response, err := user.do(ctx, http.MethodGet, "/api/conversations/"+name+"/git/patch", nil, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if isTerminal(c.Out) {
		return showPatch(c.Out, response.Body)
	}
	_, err = io.Copy(c.Out, response.Body)
	return err
}

// showPatch writes a patch with the colours of git.
func showPatch(out io.Writer, patch io.Reader) error {
	lines := bufio.NewReader(patch)
	for {
		line, err := lines.ReadString('\n')
		text := strings.TrimSuffix(line, "\n")
		if _, failed := io.WriteString(out, colour(printable(text))+line[len(text):]); failed != nil ||
			errors.Is(err, io.EOF) {
			return failed
		}
		if err != nil {
			return err
		}
	}
}

func colour(line string) string {
	for _, c := range []struct{ prefix, code string }{
		{"+++", "1"}, {"---", "1"}, {"diff ", "1"}, {"@@", "36"}, {"+", "32"}, {"-", "31"},
	} {
		if strings.HasPrefix(line, c.prefix) {
			return "\x1b[" + c.code + "m" + line + "\x1b[0m"
		}
	}
	return line
}
