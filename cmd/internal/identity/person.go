package identity

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coreos/go-oidc/v3/oidc"
)

const (
	// reserved is the prefix of Kubernetes' own names.
	reserved = "system:"
	// MaxName is the largest length of a username or group in bytes, with its prefix.
	MaxName = 256
	// maxGroups is the largest number of groups in a token.
	maxGroups = 1000
)

// Person is an authenticated person.
type Person struct {
	// Username and Groups include the configured prefixes.
	Username string
	Groups   []string
	Expires  time.Time
	Nonce    string
	// Email is the verified address, if any.
	Email string
}

// person returns the person whom a verified token identifies. encoded is the text of this token.
func (o *Options) person(encoded string, token *oidc.IDToken) (*Person, error) {
	var claims map[string]json.RawMessage
	if err := token.Claims(&claims); err != nil {
		return nil, err
	}
	if err := o.checkUse(encoded, token, claims); err != nil {
		return nil, err
	}
	var username string
	if json.Unmarshal(claims[o.UsernameClaim], &username) != nil || username == "" {
		return nil, fmt.Errorf("the token has no name in the claim %s", o.UsernameClaim)
	}
	if strings.HasPrefix(username, reserved) {
		return nil, fmt.Errorf("the name in the token's claim %s must not begin with %s", o.UsernameClaim, reserved)
	}
	claim, sent := claims["email_verified"]
	verified := isTrue(claim)
	if o.UsernameClaim == "email" && !verified && (sent || !o.AllowUnverifiedEmail) {
		return nil, errors.New("the token's claim email_verified must be true")
	}
	person := &Person{Username: o.UsernamePrefix + username, Expires: token.Expiry, Nonce: token.Nonce}
	if email := ""; verified && json.Unmarshal(claims["email"], &email) == nil {
		person.Email = email
	}
	groups, err := groupsOf(claims[o.GroupsClaim])
	if err != nil {
		return nil, fmt.Errorf("the claim %s of the token: %w", o.GroupsClaim, err)
	}
	for _, group := range groups {
		if !strings.HasPrefix(group, reserved) {
			person.Groups = append(person.Groups, o.GroupsPrefix+group)
		}
	}
	for _, name := range append([]string{person.Username}, person.Groups...) {
		if !Valid(name) {
			return nil, errors.New("the token has a name or group that is too long, reserved or not printable")
		}
	}
	return person, nil
}

// isTrue decodes a Boolean. Some providers send it as a string.
func isTrue(claim json.RawMessage) bool {
	return string(claim) == "true" || string(claim) == `"true"`
}

// checkUse refuses tokens that are not ID tokens of Parley's clients.
func (o *Options) checkUse(encoded string, token *oidc.IDToken, claims map[string]json.RawMessage) error {
	clients := slices.DeleteFunc([]string{o.ClientID, o.CLIClientID}, func(id string) bool { return id == "" })
	ours := func(audience string) bool { return slices.Contains(clients, audience) }
	if !slices.ContainsFunc(token.Audience, ours) {
		return errors.New("the token is for another audience")
	}
	var party string
	if claim, found := claims["azp"]; found && (json.Unmarshal(claim, &party) != nil || !ours(party)) {
		return errors.New("the token was issued to another client")
	}
	if len(token.Audience) > 1 && party == "" {
		return errors.New("the token has several audiences, and does not name the client it was issued to")
	}
	var header struct {
		Type string `json:"typ"`
	}
	if decode(encoded, 0, &header) != nil || header.Type != "" && !strings.EqualFold(header.Type, "JWT") {
		return errors.New("the token is not an ID token")
	}
	if _, logout := claims["events"]; logout {
		return errors.New("the token is not an ID token")
	}
	return nil
}

// groupsOf decodes a list of groups, or a single group.
func groupsOf(claim json.RawMessage) (groups []string, err error) {
	if claim == nil {
		return nil, nil
	}
	if json.Unmarshal(claim, &groups) != nil {
		var one string
		if json.Unmarshal(claim, &one) != nil {
			return nil, errors.New("it must be a list of names")
		}
		groups = []string{one}
	}
	if len(groups) > maxGroups {
		return nil, fmt.Errorf("it has more than %d groups", maxGroups)
	}
	return groups, nil
}

// Valid reports whether a username or group may be used. The parameter name includes the configured
// prefix.
func Valid(name string) bool {
	return name != "" && len(name) <= MaxName && utf8.ValidString(name) && !strings.HasPrefix(name, reserved) &&
		!strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

func issuerOf(token string) string {
	var claims struct {
		Issuer string `json:"iss"`
	}
	if decode(token, 1, &claims) != nil {
		return ""
	}
	return claims.Issuer
}

// decode decodes one part of a token without verifying it.
func decode(token string, part int, into any) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return errors.New("it is not a signed token")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[part])
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
