package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-dev/parley/api/rest"
)

// open is `kubectl parley open`.
type open struct {
	*plugin
	talking
	settings string
	port     uint16
	browser  bool
	// browse shows an address to whoever sits there.
	browse func(address string) error
}

func newOpen(p *plugin) *cobra.Command {
	o := &open{plugin: p, browse: startBrowser}
	cmd := &cobra.Command{
		Use:   "open [NAME]",
		Short: "Open the page, signed in",
		Long: `Open the facade's page in a browser, signed in: at a conversation, or at the list of them.

What is printed, and opened, is a link that signs in once and within ten minutes; there is no key in it.
Without --facade a port of this machine's loopback leads to the facade until Ctrl-C.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: p.completeConversations,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), strings.Join(args, ""), cmd.Flags().Changed("browser"))
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.settings, "settings", "default",
		"The UserSettings to sign in as, where no conversation is named.")
	_ = cmd.RegisterFlagCompletionFunc("settings", flagCompletion(p.completeSettings))
	cmd.Flags().Uint16Var(&o.port, "port", 0, "The port of this machine. Default: one that is free.")
	cmd.Flags().BoolVar(&o.browser, "browser", true, "Open the link in a browser. Default: if standard output is a "+
		"terminal.")
	return cmd
}

func (o *open) run(ctx context.Context, name string, asked bool) error {
	if o.given("settings") && os.Getenv("PARLEY_KEY") != "" {
		return errors.New("--settings names whose key to read, but $PARLEY_KEY already holds a key: unset one of them")
	}
	c, err := o.connect()
	if err != nil {
		return err
	}
	if name != "" {
		conv, err := c.conversation(ctx, name)
		if err != nil {
			return err
		}
		o.settings = conv.Spec.UserSettingsName
	}
	key, err := c.keyOf(ctx, o.settings)
	if err != nil {
		return err
	}
	if !asked && !isTerminal(o.Out) {
		o.browser = false
	}
	if o.facade != "" {
		address, err := o.address(newProgress(o.ErrOut).say)
		if err != nil {
			return err
		}
		return o.show(ctx, &person{url: address, credential: key}, name)
	}
	return o.forward(ctx, c, key, name)
}

// forward a port to the facade until Ctrl-C, to another of its pods when one goes. The link is
// shown once.
func (o *open) forward(ctx context.Context, c *cluster, key credential, name string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := newProgress(o.ErrOut)
	shown := false
	err := o.reach(ctx, c, o.port, func() { p.say("the connection is lost") }, func(port uint16) {
		if shown {
			p.say("connected again")
			return
		}
		shown = true
		if err := o.show(ctx, &person{url: fmt.Sprintf("http://127.0.0.1:%d", port), credential: key}, name); err != nil {
			cancel(err)
			return
		}
		p.say("forwarding to the facade; Ctrl-C ends it")
	})
	switch cause := context.Cause(ctx); {
	case cause != nil && !errors.Is(cause, context.Canceled):
		return cause
	case cause != nil:
		return nil
	}
	return err
}

// show the link, and open it.
func (o *open) show(ctx context.Context, user *person, name string) error {
	var link rest.SignInLink
	if err := user.read(ctx, http.MethodPost, "/api/signin/link", &link); err != nil {
		return err
	}
	address := user.url + link.Path
	if name != "" {
		address += "&then=" + name
	}
	fmt.Fprintln(o.Out, address)
	if !o.browser {
		return nil
	}
	if err := o.browse(address); err != nil {
		fmt.Fprintf(o.ErrOut, "No browser can be opened (%v): open the link in one.\n", err)
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
