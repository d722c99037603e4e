package settings

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// Secrets lists the user's custom secrets without their values.
func (s *Store) Secrets(ctx context.Context, u *auth.User) (any, error) {
	live, err := Live(ctx, s.Cluster, u)
	if err != nil {
		return nil, err
	}
	listed := []rest.ListedSecret{}
	for _, secret := range secretsOf(&live.Spec).CustomSecrets {
		listed = append(listed, rest.ListedSecret{Name: secret.Name, Description: secret.Description})
	}
	return rest.SecretList{CustomSecrets: listed}, nil
}

// AddSecret stores a new secret.
func (s *Store) AddSecret(ctx context.Context, u *auth.User, body []byte) (any, error) {
	request, details := rest.DecodeSecret(body, true)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	if found, err := s.hasSecret(ctx, u, request.Name); err != nil || found {
		return nil, cmp.Or(err, refuse(http.StatusBadRequest, "Secret "+request.Name+" already exists"))
	}
	entry := &rest.CustomSecret{Secret: rest.NewKey(*request.Value)}
	if request.Description != nil {
		entry.Description = rest.Set(*request.Description)
	}
	return answer.Created{Body: rest.Stored{Message: "Secret created successfully"}},
		s.storeSecret(ctx, u, request.Name, entry)
}

// ChangeSecret changes the description of a secret. A secret cannot be renamed, because the facade
// cannot read its value and so cannot store the value under another name.
func (s *Store) ChangeSecret(ctx context.Context, u *auth.User, name string, body []byte) (any, error) {
	request, details := rest.DecodeSecret(body, false)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	found, err := s.hasSecret(ctx, u, name)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, refuse(http.StatusNotFound, "Secret not found")
	case request.Name != name:
		return nil, refuse(http.StatusBadRequest, "A secret cannot be renamed: create a new one and delete this one")
	}
	entry := &rest.CustomSecret{Description: present(request.Description)}
	return rest.Stored{Message: "Secret updated successfully"}, s.storeSecret(ctx, u, name, entry)
}

// DeleteSecret removes a secret.
func (s *Store) DeleteSecret(ctx context.Context, u *auth.User, name string) (any, error) {
	if found, err := s.hasSecret(ctx, u, name); err != nil || !found {
		return nil, cmp.Or(err, refuse(http.StatusNotFound, "Secret not found"))
	}
	return rest.Stored{Message: "Secret deleted successfully"}, s.storeSecret(ctx, u, name, nil)
}

// AddProviders adds or replaces tokens of git providers.
func (s *Store) AddProviders(ctx context.Context, u *auth.User, body []byte) (any, error) {
	tokens, details := rest.DecodeProviders(body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	err := s.storeSecrets(ctx, u, rest.UserSecrets{ProviderTokens: tokens}, func(loc rest.Location) rest.Location {
		if len(loc) < 2 || loc[1] != "secrets_store" {
			return loc
		}
		return slices.Delete(slices.Clone(loc), 1, 2)
	})
	return rest.Stored{Message: "Git providers stored"}, err
}

// UnsetProviders removes all tokens of git providers.
func (s *Store) UnsetProviders(ctx context.Context, u *auth.User) (any, error) {
	live, err := Live(ctx, s.Cluster, u)
	if err != nil {
		return nil, err
	}
	tokens := map[string]*rest.ProviderToken{}
	for _, token := range secretsOf(&live.Spec).ProviderTokens {
		tokens[string(token.Provider)] = nil
	}
	err = s.storeSecrets(ctx, u, rest.UserSecrets{ProviderTokens: tokens},
		func(loc rest.Location) rest.Location { return loc })
	return rest.Stored{Message: "Unset Git provider tokens"}, err
}

func (s *Store) storeSecret(ctx context.Context, u *auth.User, name string, entry *rest.CustomSecret) error {
	secrets := rest.UserSecrets{CustomSecrets: map[string]*rest.CustomSecret{name: entry}}
	return s.storeSecrets(ctx, u, secrets, func(loc rest.Location) rest.Location {
		switch field := loc[len(loc)-1]; field {
		case "name", "description":
			return rest.Location{"body", field}
		case "secret":
			return rest.Location{"body", "value"}
		}
		return rest.Location{"body"}
	})
}

// storeSecrets stores secrets by means of a settings request. relocate() maps an error's
// location in the settings request to its location in the client's request.
func (s *Store) storeSecrets(ctx context.Context, u *auth.User, secrets rest.UserSecrets,
	relocate func(rest.Location) rest.Location) error {
	err := s.store(ctx, u, rest.SettingsOf(&rest.Settings{SecretsStore: rest.Set(secrets)}))
	details := slices.Clone(answer.DetailsOf(err))
	if len(details) == 0 {
		return err
	}
	for i, detail := range details {
		details[i].Loc = relocate(detail.Loc)
	}
	return answer.Invalid(details...)
}

func (s *Store) hasSecret(ctx context.Context, u *auth.User, name string) (bool, error) {
	live, err := Live(ctx, s.Cluster, u)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(secretsOf(&live.Spec).CustomSecrets,
		func(c v1alpha1.CustomSecret) bool { return c.Name == name }), nil
}

func secretsOf(spec *v1alpha1.UserSettingsSpec) v1alpha1.SecretsStore {
	return ptr.Deref(spec.SecretsStore, v1alpha1.SecretsStore{})
}

func refuse(code int, message string) error {
	return &answer.Refusal{Code: code, Body: rest.Stored{Message: message}}
}
