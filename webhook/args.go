package webhook

import (
	"net/url"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// argsProblem says what is wrong with the arguments of a process; empty means nothing. Like a URL,
// they stand in a spec and in the list of processes, where others read them. It tells keys by what
// commonly holds one and by how common ones begin: a guess that catches mistakes, no proof that
// there is none.
func argsProblem(args []string) string {
	words := wordsOf(args)
	for i, word := range words {
		if isKnownKey(word) || urlHoldsKey(word) || givesKey(word, words[i+1:]) {
			return argsHoldKey
		}
	}
	for _, arg := range args {
		if strings.Contains(arg, "PRIVATE KEY-----") || bareBearer(arg) || jsonHoldsKey(arg) {
			return argsHoldKey
		}
	}
	return ""
}

const argsHoldKey = "must not hold what looks like a key: secrets never stand in a spec, name a Secret in env"

// variableProblem says what is wrong with the plain value of a variable; empty means nothing. It
// guesses as argsProblem does.
func variableProblem(name, value string) string {
	words := wordsOf([]string{value})
	if namesKey(name) && len(words) > 0 && isSecret(words[0], words[1:]) || argsProblem([]string{value}) != "" {
		return "must not hold what looks like a key: secrets never stand in a spec, name a Secret in secretRef instead of " +
			"a value"
	}
	return ""
}

// wordsOf takes arguments apart that are command lines or headers themselves, as that of sh -c.
func wordsOf(args []string) []string {
	var words []string
	for _, arg := range args {
		if strings.TrimSpace(arg) == "" {
			words = append(words, "")
		}
		for word := range strings.FieldsSeq(arg) {
			words = append(words, strings.Trim(word, "'\"`,;"))
		}
	}
	return words
}

// option is --name, --name=value, NAME=value or Name:value, a header.
var option = regexp.MustCompile(`^(-{0,2})([\w.-]+?)(?:([=:])(.*))?$`)

// givesKey reports whether a word names a key that it holds, or that follows.
func givesKey(word string, next []string) bool {
	parts := option.FindStringSubmatch(word)
	// --env=API_KEY=value. Once is enough: to go on would cost the square of what was sent.
	if parts != nil && parts[3] == "=" && !namesKey(parts[2]) {
		parts = option.FindStringSubmatch(parts[4])
	}
	if parts == nil {
		return false
	}
	dashes, name, sign, value := parts[1], parts[2], parts[3], parts[4]
	switch {
	case sign == "=" && !namesKey(name):
		return false
	case sign == "=":
		return (dashes != "" || !isJustKey(name)) && isSecret(value, next)
	case sign == ":":
		// In prose a colon follows any word. Headers that hold keys have names of several.
		header := strings.ContainsAny(name, "-_") || strings.EqualFold(name, "authorization")
		return header && namesKey(name) && followedBySecret(value, next)
	}
	return dashes != "" && namesKey(name) && followedBySecret("", next)
}

func followedBySecret(value string, next []string) bool {
	if value == "" && len(next) > 0 {
		value, next = next[0], next[1:]
	}
	return !strings.HasPrefix(value, "-") && isSecret(value, next)
}

// isSecret reports whether a value, given where a key belongs, may be one. Behind Bearer and the
// like it is the next word.
func isSecret(value string, next []string) bool {
	if authScheme.MatchString(value) {
		return len(next) > 0 && isSecret(next[0], next[1:])
	}
	return value != "" && !harmless.MatchString(value)
}

var (
	authScheme = regexp.MustCompile(`(?i)^(bearer|basic|token)$`)
	// harmless values stand for a key, say where one is, or whether there is one.
	harmless = regexp.MustCompile(`(?i)^(\$[a-z_{(]|\{\{|<|\.{0,2}/|~/|(env|file|op|vault):)|^%\w+%$` +
		`|^(true|false|yes|no|on|off|none|null|auto|stdin)$|^[\w.-]+\.(json|pem|key|crt|cer|ya?ml|toml|txt|env)$`)

	camelCase = regexp.MustCompile(`([a-z0-9])([A-Z])`)
	keyWord   = regexp.MustCompile(
		`^(key|authorization)$|(api|access|secret|private|auth|account)key$|(token|secret|password|passwd|passphrase|credentials?)$`)
	// beforeNoKey are words that make another thing of the key or token after them.
	beforeNoKey = sets.New("public", "primary", "foreign", "partition", "sort", "cache", "hot", "host", "row", "index",
		"group",
		"object", "range", "hash", "idempotency", "max", "min", "num", "next", "page", "stop", "eos", "bos", "pad",
		"no", "ask", "require", "use", "show", "hide")
)

// namesKey reports whether an option, a variable or a header of this name holds a key: --api-key,
// but not --token-limit.
func namesKey(name string) bool {
	words := strings.FieldsFunc(strings.ToLower(camelCase.ReplaceAllString(name, "$1-$2")), func(r rune) bool {
		return strings.ContainsRune("-_.", r)
	})
	last := len(words) - 1
	return last >= 0 && keyWord.MatchString(words[last]) && (last == 0 || !beforeNoKey.Has(words[last-1]))
}

// isJustKey is about key=value, which labels and filters are written like.
func isJustKey(name string) bool { return strings.EqualFold(name, "key") }

// bareBearer is about the value of an Authorization header without its name.
func bareBearer(arg string) bool {
	words := wordsOf([]string{arg})
	return len(words) > 1 && strings.EqualFold(words[0], "bearer") && isSecret(words[1], nil)
}

var jsonPair = regexp.MustCompile(`"([\w.-]+)"\s*:\s*"([^"]*)"`)

func jsonHoldsKey(arg string) bool {
	for _, pair := range jsonPair.FindAllStringSubmatch(arg, -1) {
		value := wordsOf(pair[2:])
		if namesKey(pair[1]) && !isJustKey(pair[1]) && isSecret(value[0], value[1:]) {
			return true
		}
	}
	return false
}

var urlPassword = regexp.MustCompile(`://[^/\s?#@]*:([^/\s]+)@`)

func urlHoldsKey(word string) bool {
	if !strings.Contains(word, "://") {
		return false
	}
	if password := urlPassword.FindStringSubmatch(word); password != nil && isSecret(password[1], nil) {
		return true
	}
	_, query, _ := strings.Cut(word, "?")
	query, _, _ = strings.Cut(query, "#")
	// What does not parse is left out; the rest is there all the same.
	parameters, _ := url.ParseQuery(query)
	for name, values := range parameters {
		for _, value := range values {
			if keyParameter.MatchString(name) && isSecret(value, nil) {
				return true
			}
		}
	}
	return false
}

var (
	notInKeys = regexp.MustCompile(`[^\w.-]+`)
	// knownKey is how keys begin whose makers mark them.
	knownKey = regexp.MustCompile(
		`^((gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|xapp-|AKIA|ASIA|AIza|npm_|hf_|gsk_|xai-|pplx-|tvly-|dop_v1_|shpat_|[sr]k_(live|test)_|pypi-AgEI)[\w-]{16,}` +
			`|(ya29|SG)\.[\w.-]{16,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]+)$`)
	// modelKey is how keys of many models begin. So do ordinary words, but they have no digits.
	modelKey = regexp.MustCompile(`^sk-[\w-]{16,}$`)
)

func isKnownKey(word string) bool {
	for _, piece := range notInKeys.Split(word, -1) {
		if knownKey.MatchString(piece) || modelKey.MatchString(piece) && strings.ContainsAny(piece, "0123456789") {
			return true
		}
	}
	return false
}
