package tools

import (
	"maps"
	"slices"
	"strings"
)

// maxState limits the size, in bytes, of the script that restores the state of a shell. The script
// is updated after each command. If the new script is too long, the earlier script stays in use.
const maxState = 256 << 10

// bashState prints the state of the shell in blocks. Each block has a name on its first line. The
// other lines are the script that restores this part of the state. Variables that bash sets itself
// are omitted.
const bashState = `
__parley_state() {
  printf '\036cd\n%s' "$PWD"
  printf '\036umask\numask '; umask
  printf '\036set\n'; set +o
  printf '\036shopt\n'; shopt -p
  printf '\036functions\n'; declare -f
  compgen -A variable | while IFS= read -r __parley_n; do
    case $__parley_n in
      __parley_*|BASH*|PWD|SHLVL|PPID|UID|EUID|_|SHELLOPTS|RANDOM|SRANDOM|SECONDS|EPOCH*|LINENO|FUNCNAME|GROUPS|` +
	`DIRSTACK|PIPESTATUS|OPTIND|COMP_*|HISTCMD|IFS) continue ;;
    esac
    printf '\036variable %s\n' "$__parley_n"; declare -p "$__parley_n"
  done
}`

// shState does the same as bashState for other shells, which cannot print their functions.
const shState = `
__parley_state() {
  printf '\036cd\n%s' "$PWD"
  printf '\036umask\numask '; umask
  printf '\036assignments\n'; set
  printf '\036exports\n'; export -p
}`

// readState parses the output of bashState or shState. It splits a list of assignments into one
// block per variable.
func readState(state string) map[string]string {
	blocks := map[string]string{}
	for block := range strings.SplitSeq(state, "\036") {
		name, content, _ := strings.Cut(block, "\n")
		if name != "assignments" && name != "exports" {
			blocks[name] = content
			continue
		}
		for _, line := range logicalLines(content) {
			variable, _, ok := strings.Cut(strings.TrimPrefix(line, "export "), "=")
			if ok && !isShellVariable(variable) {
				blocks[name+" "+variable] = line
			}
		}
	}
	return blocks
}

// isShellVariable reports whether the shell itself sets a variable.
func isShellVariable(name string) bool {
	return strings.HasPrefix(name, "__parley_") || slices.Contains([]string{"_", "PWD", "OLDPWD", "PPID", "OPTIND",
		"LINENO", "IFS", "PS1", "PS2", "PS4", "RANDOM", "SECONDS", "SHLVL"}, name)
}

// logicalLines splits a text at line ends outside of quotes.
func logicalLines(text string) []string {
	var lines []string
	var quote rune
	escaped, start := false, 0
	for i, r := range text {
		switch {
		case escaped:
			escaped = false
		case r == '\\' && quote != '\'':
			escaped = true
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '\'' || r == '"':
			quote = r
		case r == '\n':
			lines = append(lines, text[start:i])
			start = i + 1
		}
	}
	return append(lines, text[start:])
}

// restoreScript returns a script that brings a new shell from its initial state to this state. It
// omits all unchanged state, because the session's initial variables contain secrets.
func restoreScript(initial, now map[string]string) string {
	var script strings.Builder
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if content := now[name]; name != "" && name != "cd" && content != initial[name] {
			script.WriteString(strings.TrimSuffix(content, "\n") + "\n")
		}
	}
	var unset []string
	for name := range initial {
		variable, found := strings.CutPrefix(name, "variable ")
		if !found {
			variable, found = strings.CutPrefix(name, "assignments ")
		}
		if _, still := now[name]; found && !still {
			unset = append(unset, "unset "+variable+"\n")
		}
	}
	slices.Sort(unset)
	script.WriteString(strings.Join(unset, ""))
	if now["cd"] != initial["cd"] {
		script.WriteString("cd " + quoted(now["cd"]) + "\n")
	}
	return script.String()
}

func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
