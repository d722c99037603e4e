package session

// These are the URL paths at which a session serves its files. Only the facade may use them.
const (
	FilesPath   = "/files"
	FilePath    = "/file"
	ZipPath     = "/zip"
	ChangesPath = "/git/changes"
	DiffPath    = "/git/diff"
	PatchPath   = "/git/patch"
)

// UsagePath is the URL path at which a session serves its Usage. Only the facade may use it.
const UsagePath = "/usage"

// Usage is the usage of a model so far. Cost is in US dollars, and empty if no price is known.
type Usage struct {
	Calls        int64  `json:"calls"`
	InputTokens  int64  `json:"input_tokens"`
	OutputTokens int64  `json:"output_tokens"`
	Cost         string `json:"cost"`
}

// MaxPatch bounds a patch in bytes.
const MaxPatch = 5 << 20

// File is a file of the workspace. OpenHands clients read the JSON fields of this type and of the
// types below.
type File struct {
	Code string `json:"code"`
}

// Diff is the content of a file before the session and now.
type Diff struct {
	Modified string `json:"modified"`
	Original string `json:"original"`
}

// Upload is the result of an upload.
type Upload struct {
	Uploaded []string      `json:"uploaded_files"`
	Skipped  []SkippedFile `json:"skipped_files"`
}

// SkippedFile is a file that was not stored.
type SkippedFile struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}
