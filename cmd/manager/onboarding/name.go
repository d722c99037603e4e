package onboarding

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

const (
	readableLength = 36
	digestLength   = 16
)

var unreadable = regexp.MustCompile(`[^a-z0-9]+`)

// settingsName returns the name of a person's UserSettings for a group: a readable part of the
// username, and a digest of username and group. A person who moves to another group of the same
// namespace gets new UserSettings.
func settingsName(username, prefix, group string) string {
	readable := unreadable.ReplaceAllString(strings.ToLower(strings.TrimPrefix(username, prefix)), "-")
	readable = strings.Trim(readable[:min(len(readable), readableLength)], "-")
	sum := sha256.Sum256([]byte(username + "\x00" + group)) // names contain no NUL, so each pair has its own digest
	digest := hex.EncodeToString(sum[:])[:digestLength]
	return strings.TrimPrefix(readable+"-"+digest, "-")
}
