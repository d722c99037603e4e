package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/cmd/kubectl-parley/login"
)

func newLogin(p *plugin) *cobra.Command {
	f := &facadeFlags{}
	cmd := &cobra.Command{
		Use:   "login",
		Short: "Sign in with the account of your organisation",
		Long: `Sign in at the OpenID provider of your organisation: open the printed page in any browser, and enter
the printed code.

The command stores the tokens in your configuration directory, in a file that only you can read. The
commands that use the facade then act as you and need no rights in Kubernetes. If you may use several
UserSettings, --settings chooses one of them.`,
		Example: `  kubectl parley login --facade https://parley.example.com`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.login(cmd.Context(), p) },
	}
	f.addPersonFlags(cmd)
	return cmd
}

// loginURL returns the facade's URL. It fails if tokens must not be sent to that URL.
func (f *facadeFlags) loginURL(p *plugin) (string, error) {
	if f.facade == "" {
		return "", errors.New("set the facade's URL with --facade or $PARLEY_FACADE")
	}
	address, err := f.address(newProgress(p.ErrOut).say)
	if err == nil && !login.Secure(address) {
		err = errors.New("--facade or $PARLEY_FACADE is not an https URL: tokens are sent over https only")
	}
	return address, err
}

func (f *facadeFlags) login(ctx context.Context, p *plugin) error {
	address, err := f.loginURL(p)
	if err != nil {
		return err
	}
	store, err := login.DefaultStore()
	if err != nil {
		return err
	}
	anyone := &facadeUser{url: address, say: silent}
	var options rest.SignInOptions
	err = anyone.read(ctx, http.MethodGet, "/api/signin/options", &options)
	if refused, is := errors.AsType[*refusedError](err); is && refused.code == http.StatusNotFound {
		err = nil // earlier versions of the facade lack this path
	}
	if err != nil {
		return err
	}
	switch {
	case options.OIDC == nil:
		return errors.New("this facade has no OpenID provider: use a session key in $PARLEY_KEY")
	case options.OIDC.CLIClientID == nil || *options.OIDC.CLIClientID == "":
		return errors.New("this facade has no OpenID client for kubectl parley login: its administrator has to set " +
			"--oidc-cli-client-id")
	}
	l := &login.Login{Facade: address, Issuer: options.OIDC.Issuer, ClientID: *options.OIDC.CLIClientID,
		Scopes: login.WithOfflineAccess(options.OIDC.Scopes)}
	if before, _ := store.Load(address); before != nil && before.Issuer != l.Issuer {
		fmt.Fprintf(p.ErrOut, "! The provider of this facade has changed. At your last login it was %s.\n",
			printable(before.Issuer))
	}
	fmt.Fprintf(p.ErrOut, "Signing in at %s\n", printable(l.Issuer))
	if err := l.SignIn(ctx, func(page, code, _ string) {
		fmt.Fprintf(p.ErrOut, "Open %s\nand enter the code %s\n", printable(page), printable(code))
	}); err != nil {
		return err
	}
	user := &facadeUser{url: address, say: silent, credential: bearer(l.IDToken, "the ID token of the provider")}
	who, err := user.who(ctx)
	if err != nil {
		return err
	}
	if l.Settings, err = who.choose(f.settings, ""); err != nil {
		return err
	}
	if err := store.Save(ctx, l); err != nil {
		return err
	}
	who.show(p.Out, l.Settings)
	if len(who.Settings) > 1 && l.Settings == "" {
		fmt.Fprintln(p.ErrOut, "Choose settings with kubectl parley whoami --settings NAMESPACE/NAME.")
	}
	return nil
}

func newLogout(p *plugin) *cobra.Command {
	f := &facadeFlags{}
	cmd := &cobra.Command{
		Use:   "logout",
		Short: "Delete the tokens that login has stored, and revoke them at the provider",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return f.logout(cmd.Context(), p) },
	}
	f.addURLFlag(cmd)
	return cmd
}

// logout deletes the stored tokens before it revokes them at the provider, so that they are gone
// even if the provider does not answer.
func (f *facadeFlags) logout(ctx context.Context, p *plugin) error {
	address, err := f.loginURL(p)
	if err != nil {
		return err
	}
	store, err := login.DefaultStore()
	if err != nil {
		return err
	}
	l, err := store.Remove(ctx, address)
	if err != nil {
		return err
	}
	if l == nil {
		fmt.Fprintln(p.ErrOut, "You are not signed in at this facade.")
		return nil
	}
	switch revoked, err := l.Revoke(ctx); {
	case err != nil:
		return fmt.Errorf("the tokens are deleted here, but not revoked: %w", err)
	case revoked:
		fmt.Fprintln(p.Out, "Signed out.")
	default:
		fmt.Fprintln(p.Out, "Signed out here. The provider cannot revoke tokens: copies of the tokens stay valid.")
	}
	return nil
}

func newWhoami(p *plugin) *cobra.Command {
	f := &facadeFlags{}
	cmd := &cobra.Command{
		Use:   "whoami",
		Short: "Show your username and the settings that you may use",
		Long: `Show your username and the UserSettings that you may use. An asterisk marks the chosen settings.

With --settings, the command also stores the choice in your login.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.whoami(cmd.Context(), p) },
	}
	f.addPersonFlags(cmd)
	return cmd
}

func (f *facadeFlags) whoami(ctx context.Context, p *plugin) error {
	user, err := f.person(newProgress(p.ErrOut).say)
	switch {
	case err != nil:
		return err
	case user == nil && f.facade == "":
		return errors.New("set the facade's URL with --facade or $PARLEY_FACADE")
	case user == nil && os.Getenv(keyVariable) == "":
		return errors.New("you are not signed in at this facade: run kubectl parley login")
	case user == nil:
		address, err := f.address(silent)
		if err != nil {
			return err
		}
		user = &facadeUser{url: address, say: silent, credential: keyOfEnvironment()}
	}
	chosen := user.settings
	user.settings = "" // the stored choice may be invalid by now
	who, err := user.who(ctx)
	if err != nil {
		return err
	}
	if chosen, err = who.choose(f.settings, chosen); err != nil {
		return err
	}
	if f.settings != "" && user.stored {
		store, err := login.DefaultStore()
		if err == nil {
			err = store.Choose(ctx, user.url, chosen)
		}
		if err != nil {
			return err
		}
	}
	who.show(p.Out, chosen)
	return nil
}

// identity is the facade's description of the signed-in user.
type identity struct{ rest.Session }

func (p *facadeUser) who(ctx context.Context) (*identity, error) {
	who := &identity{}
	if err := p.read(ctx, http.MethodGet, "/api/session", who); err != nil {
		return nil, err
	}
	if who.Person == nil && who.User == nil {
		return nil, &refusedError{http.StatusUnauthorized, "the facade rejected " + p.rejected}
	}
	return who, nil
}

func namesOf(all []rest.SettingsName) (names []string) {
	for _, settings := range all {
		names = append(names, settings.Namespace+"/"+settings.Name)
	}
	return names
}

// choose returns the name of the UserSettings to use: the given name, else the stored name if the
// person may use these UserSettings, else the name of the person's only UserSettings, else an empty
// name. It fails if the person may not use the given UserSettings.
func (i *identity) choose(given, stored string) (string, error) {
	names := namesOf(i.Settings)
	switch {
	case given != "" && !slices.Contains(names, given):
		return "", fmt.Errorf("--settings %s is not one of your settings: you have %s", given, orNone(names))
	case given != "":
		return given, nil
	case slices.Contains(names, stored):
		return stored, nil
	case len(names) == 1:
		return names[0], nil
	}
	return "", nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "no settings"
	}
	return strings.Join(names, ", ")
}

func (i *identity) show(out io.Writer, chosen string) {
	if i.Person == nil {
		fmt.Fprintf(out, "%s/%s (session key)\n", printable(*i.Namespace), printable(*i.User))
		return
	}
	fmt.Fprintln(out, printable(*i.Person))
	for _, name := range namesOf(i.Settings) {
		mark := " "
		if name == chosen {
			mark = "*"
		}
		fmt.Fprintf(out, "%s %s\n", mark, printable(name))
	}
	if len(i.Settings) == 0 {
		fmt.Fprintln(out, "  (no settings: ask your administrator for a group with onboarding)")
	}
}
