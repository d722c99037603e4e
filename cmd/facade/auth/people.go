package auth

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/internal/answer"
)

// NoSettings refuses a person without usable settings.
var NoSettings = answer.Refuse(http.StatusForbidden, "You are signed in, but there are no settings for you in Parley. "+
	"Ask your administrator for access")

// notUsable refuses the choice of a UserSettings object that the person may not use. It does not
// reveal whether the object exists.
var notUsable = answer.Refuse(http.StatusForbidden, "You may not use these settings: they do not exist, they belong "+
	"to another person, or they require a group that you are not in")

// Usable returns the UserSettings objects that a person may use, sorted by namespace and name. The
// person must own the object and, if the object has a group, be in this group. If the cookie was
// revoked, Usable returns Unauthorized.
func Usable(ctx context.Context, objects cluster.API, credential Credential) ([]v1alpha1.UserSettings, error) {
	owned, err := Owned(ctx, objects, credential.Username)
	if err != nil {
		return nil, err
	}
	var usable []v1alpha1.UserSettings
	for i := range owned {
		if credential.ID != "" && HasEnded(&owned[i], credential.ID) {
			return nil, answer.Unauthorized
		}
		group := owned[i].Spec.Owner.Group
		if owned[i].DeletionTimestamp == nil && (group == nil || slices.Contains(credential.Groups, *group)) {
			usable = append(usable, owned[i])
		}
	}
	return usable, nil
}

// Owned returns the UserSettings objects of an owner, sorted by namespace and name. Do not modify
// the objects.
func Owned(ctx context.Context, objects cluster.API, username string) ([]v1alpha1.UserSettings, error) {
	owned, err := fromCache(ctx, username, objects.UsersByOwner)
	slices.SortFunc(owned, func(a, b v1alpha1.UserSettings) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return owned, err
}

// NamesOf returns the names of settings.
func NamesOf(all []v1alpha1.UserSettings) []rest.SettingsName {
	names := []rest.SettingsName{}
	for i := range all {
		names = append(names, rest.SettingsName{Namespace: all[i].Namespace, Name: all[i].Name})
	}
	return names
}

// choose returns the UserSettings object that the person chose. Without a choice, it returns the
// person's only usable UserSettings object.
func choose(ctx context.Context, objects cluster.API, credential Credential) (*v1alpha1.UserSettings, error) {
	usable, err := Usable(ctx, objects, credential)
	chosen := credential.Settings
	switch {
	case err != nil:
		return nil, err
	case chosen.Name != "" || chosen.Namespace != "":
		for i := range usable {
			if usable[i].Namespace == chosen.Namespace && usable[i].Name == chosen.Name {
				return &usable[i], nil
			}
		}
		return nil, notUsable
	case len(usable) == 0:
		return nil, NoSettings
	case len(usable) > 1:
		return nil, &answer.Refusal{Code: http.StatusConflict, Body: rest.SettingsChoice{
			Detail:   "You have several UserSettings: choose one with the header " + rest.SettingsHeader + ": namespace/name",
			Settings: NamesOf(usable)}}
	}
	return &usable[0], nil
}

const (
	// maxGroups and maxGroupBytes limit the groups in a cookie. Browsers accept cookies of up to 4
	// KiB.
	maxGroups     = 40
	maxGroupBytes = 2 << 10
)

// GroupsOf returns the groups of a person that the person's UserSettings objects require. It omits
// all other groups, because the size of a cookie is limited.
func GroupsOf(owned []v1alpha1.UserSettings, groups []string) (relevant []string) {
	size := 0
	for i := range owned {
		group := owned[i].Spec.Owner.Group
		if group == nil || !slices.Contains(groups, *group) || slices.Contains(relevant, *group) {
			continue
		}
		if size += len(*group); size > maxGroupBytes || len(relevant) == maxGroups {
			break
		}
		relevant = append(relevant, *group)
	}
	return relevant
}
