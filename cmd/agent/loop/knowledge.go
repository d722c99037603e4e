package loop

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"github.com/parley-dev/parley/cmd/agent/tools"
	"github.com/parley-dev/parley/cmd/agent/turnlog"
)

const (
	// maxInstructions limits one file of instructions, in bytes. maxAllInstructions limits all
	// files together.
	maxInstructions    = 16 << 10
	maxAllInstructions = 64 << 10
	microagents        = ".openhands/microagents"
	// maxMicroagents limits the files and directories that are searched for microagents.
	maxMicroagents = 200
	// maxLevels limits the levels of directories that are searched for instructions.
	maxLevels = 32
	// maxProblems limits how many notices about instruction files the user gets at a time.
	maxProblems = 10
)

// instructions is a file of instructions in the repository.
type instructions struct {
	name, text string
	// triggers are words. The instructions apply to each message that contains one of these words.
	// Instructions without triggers apply to every message.
	triggers []string
}

// reader reads instructions of the repository. It opens no file outside of the session's directory,
// not even through a link.
type reader struct {
	root *os.Root
	// problems are notices for the user about files that were ignored or shortened.
	problems []string
}

// openReader returns a reader for a directory. If the directory cannot be opened, the reader finds
// no instructions.
func openReader(dir string) *reader {
	root, _ := os.OpenRoot(dir) // nil if the directory cannot be opened
	return &reader{root: root}
}

func (r *reader) close() {
	if r.root != nil {
		_ = r.root.Close()
	}
}

func (r *reader) problem(format string, args ...any) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, fmt.Sprintf(format, args...))
	}
}

// read returns the text of a file, shortened if it is too long. If there is no such file, it
// returns an empty string.
func (r *reader) read(name string) string {
	if r.root == nil {
		return ""
	}
	if _, err := r.root.Lstat(name); err != nil {
		return ""
	}
	file, err := r.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a named pipe must not block
	if err != nil {
		r.problem("%s is ignored: it cannot be read, or is a link to a file outside of the workspace.", name)
		return ""
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		r.problem("%s is ignored: it is not a file.", name)
		return ""
	}
	if info.Size() > maxInstructions {
		r.problem("%s has more than %d KiB. The agent reads the first %d KiB, and the model gets only the beginning and "+
			"the end of this part.", name, maxInstructions>>10, 4*maxInstructions>>10)
	}
	content, _ := io.ReadAll(io.LimitReader(file, 4*maxInstructions)) // use as much as can be read
	text := strings.TrimPrefix(strings.ReplaceAll(string(content), "\r\n", "\n"), "\uFEFF")
	return strings.TrimSpace(tools.Cut(text, maxInstructions))
}

// directory reads AGENTS.md and CLAUDE.md of a directory. It omits a CLAUDE.md that is a copy of
// AGENTS.md or a link to AGENTS.md.
func (r *reader) directory(dir string) (found []instructions) {
	for _, name := range []string{"AGENTS.md", "CLAUDE.md"} {
		file := instructions{name: path.Join(dir, name)}
		file.text = r.read(file.name)
		if file.text != "" && (len(found) == 0 || found[0].text != file.text) {
			found = append(found, file)
		}
	}
	return found
}

// microagents reads the microagents of the repository, as OpenHands does.
func (r *reader) microagents() (found []instructions) {
	if r.root == nil {
		return nil
	}
	count := 0
	_ = fs.WalkDir(r.root.FS(), microagents, func(name string, entry fs.DirEntry, err error) error {
		if count++; count > maxMicroagents {
			r.problem("%s has too many files. The agent reads only %d of them.", microagents, maxMicroagents)
			return fs.SkipAll
		}
		if err != nil || entry.IsDir() || path.Ext(name) != ".md" || entry.Name() == "README.md" {
			return nil //nolint:nilerr // skip directories that cannot be read
		}
		if m, ok := r.microagent(name); ok {
			found = append(found, m)
		}
		return nil
	})
	return found
}

func (r *reader) microagent(name string) (m instructions, ok bool) {
	m = instructions{name: name, text: r.read(name)}
	rest, hasHeader := strings.CutPrefix(m.text, "---\n")
	front, body, closed := strings.Cut(rest, "\n---")
	if !hasHeader || !closed {
		return m, m.text != ""
	}
	var header struct {
		Name     string   `json:"name"`
		Triggers []string `json:"triggers"`
		Inputs   []any    `json:"inputs"`
	}
	if yaml.Unmarshal([]byte(front), &header) != nil {
		r.problem("%s is ignored: its header is invalid: name must be a text, and triggers must be a list of texts.", name)
		return m, false
	}
	m.triggers, m.text = header.Triggers, strings.TrimSpace(body)
	if len(header.Inputs) > 0 && header.Name != "" {
		m.triggers = append(m.triggers, "/"+header.Name)
		m.text += "\n\nIf the user did not give these inputs, ask for them before you begin."
	}
	return m, m.text != ""
}

// readInstructions reads those instructions of the repository that apply to all messages.
func readInstructions(dir string) string {
	r := openReader(dir)
	defer r.close()
	var texts []string
	for _, file := range append(r.directory("."), r.microagents()...) {
		if len(file.triggers) == 0 {
			texts = append(texts, "From "+file.name+":\n"+file.text)
		}
	}
	return tools.Cut(strings.Join(texts, "\n\n"), maxAllInstructions)
}

// triggered returns the instructions that a message of the user triggers, unless the history
// contains them. It also returns problems with files of instructions.
func (s *Session) triggered(message string) (learned []turnlog.Knowledge, problems []string) {
	r := openReader(s.state.cwd)
	defer r.close()
	r.directory(".") // only to collect problems: the model already has these instructions
	message = strings.ToLower(message)
	for _, m := range r.microagents() {
		i := slices.IndexFunc(m.triggers, func(word string) bool {
			word = strings.ToLower(strings.TrimSpace(word))
			return word != "" && strings.Contains(message, word)
		})
		if i >= 0 {
			learned = s.learn(learned, r, m, fmt.Sprintf("%s of the repository is included because the message contains %q. "+
				"It may or may not be relevant:", m.name, m.triggers[i]))
		}
	}
	return learned, r.problems
}

// entered returns the instructions that apply to the directories of these paths, unless the history
// contains them. It also returns problems with files of instructions.
func (s *Session) entered(paths []string) (learned []turnlog.Knowledge, problems []string) {
	r := openReader(s.state.cwd)
	defer r.close()
	for _, dir := range directories(s.state.cwd, paths, r.isRepository) {
		for _, file := range r.directory(dir) {
			if !strings.Contains(s.state.instructions, file.text) {
				learned = s.learn(learned, r, file, fmt.Sprintf("The repository's instructions for files in %s, from %s. Follow "+
					"them, unless the user says otherwise:", dir, file.name))
			}
		}
	}
	return learned, r.problems
}

// instructionLimit is the maximum size, in characters, of the instructions that apply to all
// messages. All other instructions in the history together have a second limit of the same size.
func (s *Session) instructionLimit() int {
	return min(maxAllInstructions, s.window()/8*charactersPerToken)
}

// instructions returns the instructions that apply to all messages. If they are too long for the
// model, it shortens them, and the returned notice tells the user.
func (s *Session) instructions() (text, notice string) {
	limit := s.instructionLimit()
	if len(s.state.instructions) <= limit {
		return s.state.instructions, ""
	}
	return tools.Cut(s.state.instructions, limit), fmt.Sprintf("The model gets only the beginning and the end of the "+
		"repository's general instructions: the model's context has room for only %d KiB of them.", limit>>10)
}

// learn adds a file to the learned files, unless the history contains it or has no room for it.
func (s *Session) learn(learned []turnlog.Knowledge, r *reader, file instructions, heading string) []turnlog.Knowledge {
	if _, known := s.state.known[file.name]; known {
		return learned
	}
	limit := s.instructionLimit()
	size := len(file.text)
	for _, text := range s.state.known {
		size += len(text)
	}
	for _, other := range learned {
		size += len(other.Text)
	}
	if size > limit {
		r.problem("The model does not get %s: the model's context has room for only %d KiB of the repository's "+
			"instructions.", file.name, limit>>10)
		return learned
	}
	return append(learned, turnlog.Knowledge{Name: file.name, Text: heading + "\n\n" + file.text})
}

// isRepository reports whether a directory is the root of a git repository, such as a clone.
func (r *reader) isRepository(dir string) bool {
	if r.root == nil {
		return false
	}
	_, err := r.root.Lstat(path.Join(dir, ".git"))
	return err == nil
}

// directories returns the directories between cwd and the paths, outer directories first. It leaves
// out hidden directories and dependencies. It also leaves out other repositories, because their
// instructions address other developers.
func directories(cwd string, paths []string, isRepository func(dir string) bool) (list []string) {
	for _, file := range paths {
		relative, err := filepath.Rel(cwd, file)
		if err != nil || !filepath.IsLocal(relative) {
			continue
		}
		names := strings.Split(relative, "/")
		for i, name := range names[:min(len(names), maxLevels)] {
			dir := path.Join(names[:i+1]...)
			if strings.HasPrefix(name, ".") || name == "node_modules" || name == "vendor" || isRepository(dir) {
				break
			}
			if !slices.Contains(list, dir) {
				list = append(list, dir)
			}
		}
	}
	return list
}

// announce sends those notices that the user has not received yet.
func (s *Session) announce(notices ...string) error {
	for _, text := range notices {
		if text == "" || s.state.notices[text] {
			continue
		}
		if err := s.record(turnlog.Record{Kind: turnlog.KindNotice, Notice: text}, notice(text)); err != nil {
			return err
		}
	}
	return nil
}
