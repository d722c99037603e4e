package main_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sys/unix"

	"github.com/parley-dev/parley/api/session"
	"github.com/parley-dev/parley/hack/test/sessionclient"
)

// If the environment variable reportVariable is set, the test binary acts as a hostile agent, which
// searches for secrets in every way it can. The value is the path of the file for the agent's
// findings.
const reportVariable = "HOSTILE_REPORT"

// aCanary matches the session's secrets, and the base64 form of a warm pod's key. The hostile agent
// knows this pattern, but not the secrets.
var aCanary = regexp.MustCompile(`canary-[a-z]+-[0-9A-Z]{20}|Y2FuYXJ5LWJpbmQt[0-9A-Za-z+/]{27}=`)

type findings struct {
	// Canaries maps each secret to the places where the agent found it.
	Canaries map[string][]string
	// Attempts maps each process ID to the agent's attempts to inspect that process, with their
	// results.
	Attempts map[int]map[string]string
	// Answers holds the HTTP statuses of the agent's requests, by address and then by method and
	// path. The agent sends requests to all addresses on which processes of its Unix user listen.
	Answers map[string]map[string]int
	// Commands maps process IDs to command lines. It contains all processes of the agent's Unix
	// user, except the agent itself.
	Commands map[int]string
	Tools    []string
	Fetched  bool
}

func beHostile(file string) {
	f := &findings{Canaries: map[string][]string{}, Attempts: map[int]map[string]string{},
		Answers: map[string]map[string]int{}, Commands: map[int]string{}}
	f.search("its environment", []byte(strings.Join(os.Environ(), "\n")))
	for _, dir := range []string{os.Getenv("PARLEY_SESSION_DIR"), os.Getenv("PARLEY_WORKSPACE"), os.Getenv("HOME"),
		"/run/parley"} {
		f.searchFiles(dir)
	}
	f.askGit()
	for _, pid := range othersOfThisUser() {
		f.lookInto(pid)
	}
	for _, address := range listening() {
		f.ask(address)
	}
	text, err := json.Marshal(f)
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (f *findings) search(where string, text []byte) {
	for _, canary := range aCanary.FindAll(text, -1) {
		if !slices.Contains(f.Canaries[string(canary)], where) {
			f.Canaries[string(canary)] = append(f.Canaries[string(canary)], where)
		}
	}
}

func (f *findings) searchFiles(dir string) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			text, _ := os.ReadFile(path)
			f.search("the file "+path, text)
		}
		return nil
	})
}

// basic matches HTTP basic credentials in a trace of git.
var basic = regexp.MustCompile(`Basic ([A-Za-z0-9+/=]+)`)

// askGit runs git fetch, and searches git's output and trace for secrets.
func (f *findings) askGit() {
	cmd := exec.Command("git", "fetch", "origin")
	cmd.Dir = os.Getenv("PARLEY_REPOSITORY")
	cmd.Env = append(os.Environ(), "GIT_TRACE=1", "GIT_TRACE_CURL=1", "GIT_TRACE_REDACT=0", "GIT_TERMINAL_PROMPT=0")
	output, err := cmd.CombinedOutput()
	f.Fetched = err == nil
	for _, credentials := range basic.FindAllSubmatch(output, -1) {
		text, _ := base64.StdEncoding.DecodeString(string(credentials[1]))
		output = append(output, text...)
	}
	f.search("git's trace", output)
}

func othersOfThisUser() (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range files {
		status, _ := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if pid != os.Getpid() && bytes.Contains(status, []byte(fmt.Sprintf("\nUid:\t%d\t", os.Getuid()))) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (f *findings) lookInto(pid int) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	command, _ := os.ReadFile(dir + "cmdline")
	f.search("a command line", command)
	f.Commands[pid] = strings.ReplaceAll(string(command), "\x00", " ")
	attempts := map[string]string{}
	f.Attempts[pid] = attempts
	try := func(attempt string, err error) {
		attempts[attempt] = "done"
		if err != nil {
			attempts[attempt] = err.Error()
		}
	}
	for _, file := range []string{"environ", "maps", "auxv", fmt.Sprintf("task/%d/environ", pid)} {
		text, err := os.ReadFile(dir + file)
		if err == nil && len(text) == 0 {
			err = io.EOF // some files can be opened but are empty
		}
		f.search(dir+file, text)
		try(file, err)
	}
	try("fd", openAny(dir+"fd/"))
	try("mem", f.searchMemory(dir))
	_, err := os.Readlink(dir + "cwd")
	try("cwd", err)

	word := make([]byte, 8)
	_, err = unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &word[0], Len: 8}}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}},
		0)
	if err == unix.EFAULT { //nolint:errorlint // an errno: reading is allowed, but the address is not mapped
		err = nil
	}
	try("process_vm_readv", err)
	if handle, openErr := unix.PidfdOpen(pid, 0); openErr == nil {
		_, err = unix.PidfdGetfd(handle, 0, 0)
		try("pidfd_getfd", err)
		_ = unix.Close(handle)
	}
	runtime.LockOSThread()
	err = unix.PtraceAttach(pid)
	if err == nil {
		_, _ = unix.Wait4(pid, nil, 0, nil)
		_ = unix.PtraceDetach(pid)
	}
	try("ptrace", err)
	try("signal", syscall.Kill(pid, 0))
}

// openAny tries to open the files that another process has open. Only opening a file proves that it
// can be read.
func openAny(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		var file *os.File
		if file, err = os.OpenFile(dir+entry.Name(), os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
			_ = file.Close()
			return nil
		}
	}
	return err
}

func (f *findings) searchMemory(dir string) error {
	memory, err := os.Open(dir + "mem")
	if err != nil {
		return err
	}
	defer memory.Close()
	maps, err := os.ReadFile(dir + "maps")
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if n, _ := fmt.Sscanf(line, "%x-%x r", &from, &to); n == 2 && to-from < 64<<20 {
			text := make([]byte, to-from)
			n, _ := memory.ReadAt(text, from)
			f.search(dir+"mem", text[:n])
		}
	}
	return err
}

func listening() (addresses []string) {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, _ := os.ReadFile(table)
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 8 || fields[3] != "0A" || fields[7] != strconv.Itoa(os.Getuid()) {
				continue
			}
			_, port, _ := strings.Cut(fields[1], ":")
			number, err := hex.DecodeString(port)
			if err == nil {
				addresses = append(addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(number[0])<<8|int(number[1]))))
			}
		}
	}
	return addresses
}

// ask requests every path that a port might serve, with all keys that the agent has.
func (f *findings) ask(address string) {
	answers := map[string]int{}
	f.Answers[address] = answers
	client := &http.Client{Timeout: 10 * time.Second}
	for _, path := range []string{"/", session.AlivePath, session.ReadyPath, session.StatusPath, session.ToolsPath,
		"/v1/models", "/v1/messages", "/v1/chat/completions", "/v1/responses",
		"/debug/pprof/heap", "/metrics", "/key", "/git/"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			for _, key := range []string{"", session.PlaceholderKey} {
				request, err := http.NewRequest(method, "http://"+address+path, strings.NewReader(`{"model":"gpt","stream":true}`))
				if err != nil {
					continue
				}
				if key != "" {
					request.Header.Set("Authorization", "Bearer "+key)
					request.Header.Set("X-Session-Api-Key", key)
				}
				response, err := client.Do(request)
				if err != nil {
					continue
				}
				text, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				f.search("an answer of "+path, append(text, fmt.Sprint(response.Header)...))
				answers[method+" "+path] = response.StatusCode
			}
		}
	}
	tools, err := sessionclient.Tools(context.Background(), "http://"+address+session.ToolsPath, http.DefaultClient)
	if err != nil {
		return
	}
	defer tools.Close()
	list, err := tools.ListTools(context.Background(), nil)
	if err != nil {
		return
	}
	for _, tool := range list.Tools {
		result, err := tools.CallTool(context.Background(), &mcp.CallToolParams{Name: tool.Name})
		text, _ := json.Marshal(result)
		f.search("the tool "+tool.Name, append(text, fmt.Sprint(err)...))
		f.Tools = append(f.Tools, tool.Name)
	}
}
