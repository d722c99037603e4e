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

type open struct {
	facadeFlags
	browser bool
}

func newOpen(p *plugin) *cobra.Command {
	o := &open{}
	cmd := p.named(&cobra.Command{
		Use:   "open [NAME]",
		Short: "Open the web page and sign in",
		Long: `Print the address of the facade's page, and open it in a browser. The page shows a conversation, or
the list of conversations.

With a login or $PARLEY_TOKEN, sign in on the page with your organisation. Otherwise the address is a
sign-in link, which works once, within ten minutes, and contains no key. The page asks before it signs
you in.

Without --facade, a local port is forwarded to the facade until Ctrl-C.`,
		Args: cobra.MaximumNArgs(1),
	}, o.run)
	o.addFlags(cmd)
	cmd.Flags().Lookup("settings").Usage = "The UserSettings to sign in with if no conversation is given. With a " +
		"login, write NAMESPACE/NAME; without a login, write only the name. Default: the settings of the login, or the " +
		"UserSettings named default."
	_ = cmd.RegisterFlagCompletionFunc("settings", p.complete(&v1alpha1.UserSettingsList{}))
	cmd.Flags().Uint16Var(&o.port, "port", 0, "The local port. Default: a free port.")
	cmd.Flags().BoolVar(&o.browser, "browser", false, "Open the link in a browser. Default: only if standard output is a "+
		"terminal.")
	return cmd
}

// run opens the page. If the facade's URL is not set, it forwards a port until Ctrl-C.
func (o *open) run(ctx context.Context, c *cluster, name string) error {
	if o.isSet("settings") && os.Getenv("PARLEY_KEY") != "" {
		return errors.New("--settings and $PARLEY_KEY both select a user: use only one of them")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	say := newProgress(c.ErrOut).say
	user, err := o.connect(ctx, c, name, say)
	if err != nil {
		return err
	}
	if user.token != nil {
		return o.showPage(c, user, name)
	}
	if err := o.show(ctx, c, user, name); err != nil || user.forwardEnded == nil {
		return err
	}
	say("forwarding to the facade; press Ctrl-C to stop")
	if err := <-user.forwardEnded; !interrupted(ctx) {
		return err
	}
	return nil
}

func (o *open) show(ctx context.Context, c *cluster, user *facadeUser, name string) error {
	var link rest.SignInLink
	if err := user.read(ctx, http.MethodPost, "/api/signin/link", &link); err != nil {
		return err
	}
	address := user.url + link.Path
	if name != "" {
		address += "&then=" + name
	}
	return o.browse(c, address)
}

// showPage opens the page without a sign-in link. Only a user with a session key can create such a
// link, and this user has a token instead.
func (o *open) showPage(c *cluster, user *facadeUser, name string) error {
	address := user.url + "/"
	if name != "" {
		address += "#/c/" + name
	}
	return o.browse(c, address)
}

func (o *open) browse(c *cluster, address string) error {
	fmt.Fprintln(c.Out, address)
	if !o.browser && (o.isSet("browser") || !isTerminal(c.Out)) {
		return nil
	}
	if err := startBrowser(address); err != nil {
		fmt.Fprintf(c.ErrOut, "Cannot start a browser (%v): open the link yourself.\n", err)
	}
	return nil
}

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
