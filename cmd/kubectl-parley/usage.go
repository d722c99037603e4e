package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/session"
)

type usage struct {
	facadeFlags
	month string
	all   bool
}

func newUsage(p *plugin) *cobra.Command {
	u := &usage{}
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show the costs of model calls in a month",
		Long: `Show the costs of your model calls in a month, by model, and your spending limits.

With --all, show the costs in the namespace by person instead. This runs a command in the pod of the
archive, so it needs the right to create pods/exec in the archive's namespace.`,
		Example: `  kubectl parley usage
  kubectl parley usage --month 2026-01
  kubectl parley usage --all -n team-a`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return u.run(cmd.Context(), p) },
	}
	u.addFlags(cmd)
	cmd.Flags().StringVar(&u.month, "month", "", "The month in UTC, such as 2026-01. Default: the current month.")
	cmd.Flags().BoolVar(&u.all, "all", false, "Show the costs of all persons in the namespace.")
	return cmd
}

func (u *usage) run(ctx context.Context, p *plugin) error {
	if _, err := time.Parse(session.MonthForm, u.month); u.month != "" && err != nil {
		return errors.New("--month must be a month such as 2026-01")
	}
	c, err := p.connect()
	if err != nil {
		return err
	}
	if u.all {
		usage, err := c.namespaceUsage(ctx, u.namespace, u.month)
		if err == nil {
			err = showNamespaceUsage(c.Out, usage)
		}
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	user, err := u.connect(ctx, c, "", silent)
	if err != nil {
		return err
	}
	path := "/api/usage"
	if u.month != "" {
		path += "?" + url.Values{"month": {u.month}}.Encode()
	}
	var own rest.Usage
	if err := user.read(ctx, http.MethodGet, path, &own); err != nil {
		return err
	}
	return showUsage(c.Out, &own)
}

// dollars formats an amount that the facade sent.
func dollars(text string) string {
	amount, err := session.ParseDollars(text)
	if err != nil {
		return printable(text)
	}
	return amount.Cents()
}

func showUsage(out io.Writer, own *rest.Usage) error {
	fmt.Fprintf(out, "%s: %s spent", printable(own.Month), dollars(own.Spent))
	if own.Unsettled != "0" {
		fmt.Fprintf(out, " (%s of it unsettled)", dollars(own.Unsettled))
	}
	if own.Reserved != "0" {
		fmt.Fprintf(out, ", %s reserved", dollars(own.Reserved))
	}
	fmt.Fprintln(out)
	for _, limit := range own.Limits {
		fmt.Fprintf(out, "Limit per %s and %s: %s", printable(limit.Period), printable(limit.Scope), dollars(limit.Limit))
		if limit.Used != nil {
			fmt.Fprintf(out, ", %s used", dollars(*limit.Used))
		}
		fmt.Fprintf(out, ", resets %s\n", limit.Resets.UTC().Format(time.RFC3339))
	}
	var lines []session.SpentLine
	for _, line := range own.Lines {
		cost, err := session.ParseDollars(line.Cost)
		if err != nil {
			return fmt.Errorf("the facade's answer is not valid: %w", err)
		}
		lines = append(lines, session.SpentLine{Model: line.Model, Calls: line.Calls, Input: line.InputTokens,
			Output: line.OutputTokens, Cost: cost})
	}
	return showModels(out, lines)
}

// showModels prints a table of models, the most expensive first.
func showModels(out io.Writer, lines []session.SpentLine) error {
	models := map[string]session.SpentLine{}
	for _, line := range lines {
		sum := models[line.Model]
		models[line.Model] = session.SpentLine{Calls: sum.Calls + line.Calls, Input: sum.Input + line.Input,
			Output: sum.Output + line.Output, Cost: sum.Cost.Plus(line.Cost)}
	}
	if len(models) == 0 {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(models), func(a, b string) int {
		return cmp.Or(cmp.Compare(models[b].Cost, models[a].Cost), strings.Compare(a, b))
	})
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "MODEL\tCALLS\tINPUT\tOUTPUT\tCOST")
	for _, name := range names {
		m := models[name]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\n", printable(name), m.Calls, m.Input, m.Output, m.Cost.Cents())
	}
	return table.Flush()
}

func showNamespaceUsage(out io.Writer, all *session.SpendUsage) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "OWNER\tSPENT\tUNSETTLED\tRESERVED")
	slices.SortStableFunc(all.Owners, func(a, b session.OwnerUsage) int { return cmp.Compare(b.Spent, a.Spent) })
	for _, of := range append(all.Owners, session.OwnerUsage{Owner: "total", UsageTotals: all.UsageTotals}) {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", printable(of.Owner), of.Spent.Cents(), of.Unsettled.Cents(),
			of.Reserved.Cents())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	var lines []session.SpentLine
	for _, line := range all.Lines {
		lines = append(lines, line.SpentLine)
	}
	fmt.Fprintln(out)
	return showModels(out, lines)
}
