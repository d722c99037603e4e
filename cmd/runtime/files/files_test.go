package files_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/cmd/runtime/files"
)

func sh(t *testing.T, dir, command string) string {
	t.Helper()
	cmd := exec.Command("sh", "-ec", command)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir+"/.parley", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=T",
		"GIT_AUTHOR_EMAIL=t@example.com",
		"GIT_COMMITTER_NAME=T", "GIT_COMMITTER_EMAIL=t@example.com")
	output, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return strings.TrimSpace(string(output))
}

func serve(t *testing.T) (dir string, server *httptest.Server) {
	t.Helper()
	dir = t.TempDir()
	base := sh(t, dir, `
		mkdir -p .parley/home src && echo '*' > .parley/.gitignore
		git init -q -b main .
		printf 'one\ntwo\nthree\n' > kept && echo old > src/changed && echo x > gone && echo y > renamed
		git add . && git commit -qm one && git rev-parse HEAD`)
	sh(t, dir, `
		echo hunter2 > src/changed && git commit -qam two
		rm gone && git mv renamed moved && echo new > untracked
		printf 'a\0b' > binary && ln -s /etc outside && ln -s src/changed inside && ln -s ../.. up`)
	s := &files.Server{Dir: dir, Base: base, Mask: strings.NewReplacer("hunter2", "***").Replace}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /files", s.List)
	mux.HandleFunc("POST /files", s.Upload)
	mux.HandleFunc("GET /file", s.Read)
	mux.HandleFunc("GET /zip", s.Zip)
	mux.HandleFunc("GET /changes", s.Changes)
	mux.HandleFunc("GET /diff", s.Diff)
	mux.HandleFunc("GET /patch", s.Patch)
	server = httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return dir, server
}

func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, strings.TrimSpace(string(text))
}

func TestFilesAreListedReadAndCompared(t *testing.T) {
	_, server := serve(t)
	for path, want := range map[string]string{
		"/files":                 `200 ["src/","binary","inside","kept","moved","outside","untracked","up"]`,
		"/files?path=src":        `200 ["changed"]`,
		"/files?path=./src/":     `200 ["changed"]`,
		"/file?path=kept":        `200 {"code":"one\ntwo\nthree\n"}`,
		"/file?path=src/changed": `200 {"code":"***\n"}`,
		"/file?path=inside":      `200 {"code":"***\n"}`,
		"/diff?path=src/changed": `200 {"modified":"***\n","original":"old\n"}`,
		"/diff?path=gone":        `200 {"modified":"","original":"x\n"}`,
		"/diff?path=untracked":   `200 {"modified":"new\n","original":""}`,
		"/diff?path=outside":     `200 {"modified":"/etc","original":""}`,
		"/changes": `200 [{"status":"U","path":"binary"},{"status":"D","path":"gone"},{"status":"U",` +
			`"path":"inside"},{"status":"A","path":"moved"},{"status":"U","path":"outside"},{"status":"D","path":"renamed"},` +
			`{"status":"M","path":"src/changed"},{"status":"U","path":"untracked"},{"status":"U","path":"up"}]`,
		"/file?path=binary":        `415 {"detail":"the file is binary"}`,
		"/diff?path=binary":        `415 {"detail":"the file is binary"}`,
		"/file?path=src":           `422 {"detail":"path: not a file"}`,
		"/file?path=nothing":       `404 {"detail":"path: no such file"}`,
		"/files?path=nothing":      `404 {"detail":"path: no such file"}`,
		"/file?path=.parley/home":  `404 {"detail":"path: no such file"}`,
		"/files?path=src/../.git":  `404 {"detail":"path: no such file"}`,
		"/file?path=../x":          `422 {"detail":"path: outside of the workspace"}`,
		"/file?path=/etc/passwd":   `422 {"detail":"path: outside of the workspace"}`,
		"/file?path=outside/hosts": `422 {"detail":"path: outside of the workspace"}`,
		"/files?path=outside":      `422 {"detail":"path: outside of the workspace"}`,
		"/files?path=up":           `422 {"detail":"path: outside of the workspace"}`,
		"/diff?path=../x":          `422 {"detail":"path: outside of the workspace"}`,
	} {
		code, body := get(t, server.URL+path)
		if got := fmt.Sprintf("%d %s", code, body); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

func TestGitCanApplyThePatchOfASession(t *testing.T) {
	dir, server := serve(t)
	sh(t, dir, "rm binary inside outside up && echo 'last line without an end' > kept && printf plain > untracked")
	code, patch := get(t, server.URL+"/patch")
	if code != http.StatusOK || strings.Contains(patch, "hunter2") {
		t.Fatalf("got %d %s", code, patch)
	}
	file := filepath.Join(t.TempDir(), "patch")
	if err := os.WriteFile(file, []byte(patch+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	sh(t, elsewhere, "git clone -q "+dir+" . && git checkout -q HEAD~1 && git apply "+file)
	for _, name := range []string{"kept", "moved", "untracked"} {
		if got, want := sh(t, elsewhere, "cat "+name), sh(t, dir, "cat "+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if got := sh(t, elsewhere, "ls; cat src/changed"); got != "kept\nmoved\nsrc\nuntracked\n***" {
		t.Errorf("there are %s", got)
	}
}

func TestADirectoryWithoutARepositoryHasNoChanges(t *testing.T) {
	s := &files.Server{Dir: t.TempDir(), Mask: strings.ToLower}
	answer := httptest.NewRecorder()
	s.Changes(answer, httptest.NewRequest("GET", "/", nil))
	if got := fmt.Sprintf("%d %s", answer.Code, strings.TrimSpace(answer.Body.String())); got != `404 {"error":"Not a `+
		`git repository"}` {
		t.Errorf("got %s", got)
	}
}

func TestTheZipContainsAllFilesExceptParleysRecords(t *testing.T) {
	_, server := serve(t)
	_, body := get(t, server.URL+"/zip")
	archive, err := zip.NewReader(strings.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, file := range archive.File {
		content, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(content)
		found[file.Name] = string(text)
		if strings.HasPrefix(file.Name, ".parley") {
			t.Errorf("it has %s", file.Name)
		}
	}
	if found["kept"] != "one\ntwo\nthree\n" || found["outside"] != "/etc" || found[".git/HEAD"] == "" {
		t.Errorf("it has %q", found)
	}
}

func TestRequestsForANamedPipeAreRefusedAndDoNotBlock(t *testing.T) {
	dir, server := serve(t)
	sh(t, dir, "mkfifo pipe")
	for path, want := range map[string]string{
		"/files?path=pipe": `422 {"detail":"path: not a directory"}`,
		"/files?path=kept": `422 {"detail":"path: not a directory"}`,
		"/file?path=pipe":  `422 {"detail":"path: not a file"}`,
	} {
		code, body := get(t, server.URL+path)
		if got := fmt.Sprintf("%d %s", code, body); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

func TestTheNextComparisonWaitsUntilACancelledComparisonEnds(t *testing.T) {
	dir, _ := serve(t)
	s := &files.Server{Dir: dir, Mask: strings.ToLower}
	changes := func(ctx context.Context) string {
		answer := httptest.NewRecorder()
		s.Changes(answer, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
		return fmt.Sprintf("%d %s", answer.Code, strings.TrimSpace(answer.Body.String()))
	}
	pipe := filepath.Join(dir, ".gitignore")
	sh(t, dir, "mkfifo .gitignore")
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	first := make(chan string)
	go func() { first <- changes(ctx) }()
	// This call blocks until the comparison opens the pipe for reading.
	writer, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	giveUp()
	<-first
	// The first comparison still reads the pipe. Move the pipe away: otherwise, the second comparison
	// would wait for the pipe, and not for the first comparison.
	if err := os.Rename(pipe, filepath.Join(t.TempDir(), "pipe")); err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := changes(soon); got != `503 {"detail":"comparing the files takes too long"}` {
		t.Errorf("while the first continues: %s", got)
	}
	_ = writer.Close()
	for range 2 {
		if got := changes(t.Context()); !strings.HasPrefix(got, "200 ") {
			t.Errorf("after it ended: %s", got)
		}
	}
}

// upload uploads a file. In the returned response, NAME replaces the file's name.
func upload(server *httptest.Server, name string, content io.Reader) (string, error) {
	reader, writer := io.Pipe()
	form := multipart.NewWriter(writer)
	go func() {
		part, err := form.CreateFormFile("files", name)
		if err == nil {
			_, err = io.Copy(part, content)
		}
		_ = writer.CloseWithError(errors.Join(err, form.Close()))
	}()
	response, err := http.Post(server.URL+"/files", form.FormDataContentType(), reader)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return strings.ReplaceAll(strings.TrimSpace(string(text)), name, "NAME"), err
}

func TestAFileMayHaveALongName(t *testing.T) {
	dir, server := serve(t)
	name := strings.Repeat("n", 200)
	if got, err := upload(server, name, strings.NewReader("hello")); err != nil ||
		got != `{"uploaded_files":["NAME"],"skipped_files":[]}` {
		t.Errorf("got %s, %v", got, err)
	}
	if got := sh(t, dir, "cat "+name); got != "hello" {
		t.Errorf("there is %s", got)
	}
}

func TestConcurrentUploadsOfOneNameDoNotMix(t *testing.T) {
	dir, server := serve(t)
	reader, writer := io.Pipe()
	first := make(chan string, 1)
	go func() {
		got, err := upload(server, "note", reader)
		first <- fmt.Sprint(got, err)
	}()
	// 1 MiB is more than the buffers hold, so the write ends only after the server has begun to
	// read.
	if _, err := writer.Write(bytes.Repeat([]byte("x"), 1<<20)); err != nil {
		t.Fatal(err)
	}
	for sh(t, dir, "ls -A | grep -c ^.upload- || true") != "1" {
		<-time.After(2 * time.Millisecond)
	}
	if got, err := upload(server, "note", strings.NewReader("other")); err != nil || !strings.Contains(got,
		"another upload of a file with this name is in progress") {
		t.Errorf("the second: %s, %v", got, err)
	}
	_ = writer.Close()
	if got := <-first; !strings.Contains(got, `"uploaded_files":["NAME"]`) {
		t.Errorf("the first: %s", got)
	}
	if got := sh(t, dir, "wc -c < note; ls -A | grep -c ^.upload- || true"); got != "1048576\n0" {
		t.Errorf("there is %s", got)
	}
}

func TestAnUploadedFileIsStoredCompletelyOrNotAtAll(t *testing.T) {
	dir, server := serve(t)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	add := func(field, name string, content io.Reader) {
		part, err := form.CreateFormFile(field, name)
		if err == nil {
			_, err = io.Copy(part, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add("files", "note.txt", strings.NewReader("hello"))
	add("files", "kept", strings.NewReader("replaced"))
	add("files", ".parley", strings.NewReader("x"))
	add("files", "src", strings.NewReader("x"))
	add("files", "huge", io.LimitReader(zeros{}, 32<<20+1))
	add("other", "not-asked-for", strings.NewReader("x"))
	_ = form.Close()
	response, err := http.Post(server.URL+"/files", form.FormDataContentType(), &body)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var answer session.Upload
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(answer); got != "{[note.txt kept] [{.parley this file name is not allowed} "+
		"{src a directory has this name} {huge the file is larger than 32 MiB}]}" {
		t.Errorf("got %s", got)
	}
	if got := sh(t, dir, "cat note.txt kept; ls -A"); !strings.HasPrefix(got, "helloreplaced") || strings.Contains(got,
		"upload") || strings.Contains(got, "huge") || strings.Contains(got, "not-asked") {
		t.Errorf("there are %s", got)
	}
	for _, kind := range []string{"application/json", "multipart/form-data; boundary=x"} {
		response, err := http.Post(server.URL+"/files", kind, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%s: got %d", kind, response.StatusCode)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
