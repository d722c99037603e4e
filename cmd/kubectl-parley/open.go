package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
)

// open is `kubectl parley open`.
type open struct {
	talking
	browser bool
}

func newOpen(p *plugin) *cobra.Command {
	o := &open{}
	cmd := p.named(&cobra.Command{
		Use:   "open [NAME]",
		Short: "Open the page, signed in",
		Long: `Open the facade's page in a browser, signed in: at a conversation, or at the list of them.

What is printed, and opened, is a link that signs in once and within ten minutes; there is no key in it.
Without --facade a port of this machine's loopback leads to the facade until Ctrl-C.`,
		Args: cobra.MaximumNArgs(1),
	}, o.run)
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.settings, "settings", "default",
		"The UserSettings to sign in as, where no conversation is named.")
	_ = cmd.RegisterFlagCompletionFunc("settings", p.complete(&v1alpha1.UserSettingsList{}))
	cmd.Flags().Uint16Var(&o.port, "port", 0, "The port of this machine. Default: one that is free.")
	cmd.Flags().BoolVar(&o.browser, "browser", true, "Open the link in a browser. Default: if standard output is a "+
		"terminal.")
	return cmd
}

// run shows the link, and forwards a port to the facade until Ctrl-C where no URL of it is named.
func (o *open) run(ctx context.Context, c *cluster, name string) error {
	if o.given("settings") && os.Getenv("PARLEY_KEY") != "" {
		return errors.New("--settings names whose key to read, but $PARLEY_KEY already holds a key: unset one of them")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	say := newProgress(c.ErrOut).say
	user, err := o.as(ctx, c, name, say)
	if err != nil {
		return err
	}
	if err := o.show(ctx, c, user, name); err != nil || user.ended == nil {
		return err
	}
	say("forwarding to the facade; Ctrl-C ends it")
	if err := <-user.ended; !interrupted(ctx) {
		return err
	}
	return nil
}

// show the link, and open it.
func (o *open) show(ctx context.Context, c *cluster, user *person, name string) error {
	var link rest.SignInLink
	if err := user.read(ctx, http.MethodPost, "/api/signin/link", &link); err != nil {
		return err
	}
	address := user.url + link.Path
	if name != "" {
		address += "&then=" + name
	}
	fmt.Fprintln(c.Out, address)
	if !o.browser || !o.given("browser") && !isTerminal(c.Out) {
		return nil
	}
	if err := startBrowser(address); err != nil {
		fmt.Fprintf(c.ErrOut, "No browser can be opened (%v): open the link in one.\n", err)
	}
	return nil
}

// startBrowser opens an address the way that the system does.
func startBrowser(address string) error {
	command := exec.Command("xdg-open", address)
	switch runtime.GOOS {
	case "darwin":
		command = exec.Command("open", address)
	case "windows":
		command = exec.Command("rundll32", "url.dll,FileProtocolHandler", address)
	}
	if err := command.Start(); err != nil {
		return err
	}
	go func() { _ = command.Wait() }()
	return nil
}
