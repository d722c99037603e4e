package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/parley-dev/parley/cmd/archive/store"
)

// printUsage prints the costs in a namespace, by person, model and day. The command
// kubectl parley usage --all runs it in the archive's pod, for administrators.
func printUsage(ctx context.Context, o options, out io.Writer) error {
	archive, err := store.Open(ctx, o.store, 0)
	if err != nil {
		return fmt.Errorf("--store: %w", err)
	}
	usage, err := archive.Usage(ctx, "", o.usage, o.month)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(usage)
}
