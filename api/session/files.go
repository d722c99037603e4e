package session

// Paths at which a session serves its files, to the facade only.
const (
	FilesPath   = "/files"
	FilePath    = "/file"
	ZipPath     = "/zip"
	ChangesPath = "/git/changes"
	DiffPath    = "/git/diff"
	PatchPath   = "/git/patch"
)

// UsagePath is where a session says what it used of its model, to the facade only.
const UsagePath = "/usage"

// Usage of a model so far. Cost is in US dollars, and empty where no price is known.
type Usage struct {
	Calls        int64  `json:"calls"`
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
	Cost         string `json:"cost"`
}

// MaxPatch is how many bytes of the whole difference are told.
const MaxPatch = 5 << 20

// File of the workspace. These names, as those below, are what clients of the existing service
// know.
type File struct {
	Code string `json:"code"`
}

// Diff is a file before the session and now.
type Diff struct {
	Modified string `json:"modified"`
	Original string `json:"original"`
}

// Upload is what became of files that a user sent.
type Upload struct {
	Uploaded []string      `json:"uploaded_files"`
	Skipped  []SkippedFile `json:"skipped_files"`
}

// SkippedFile was not taken.
type SkippedFile struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}
