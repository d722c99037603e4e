package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/acp"
	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

func imageOf(data []byte) acp.Content {
	return acp.Content{Type: "image", MimeType: "image/png", Data: base64.StdEncoding.EncodeToString(data)}
}

func serve(t *testing.T, server *mcp.Server) []acp.MCPServer {
	t.Helper()
	httpServer := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(func() { httpServer.CloseClientConnections(); httpServer.Close() })
	return []acp.MCPServer{{Type: "http", Name: "router", URL: httpServer.URL, Headers: []acp.Header{}}}
}

func addTool(server *mcp.Server, name, schema string, content ...mcp.Content) {
	server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)},
		func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: append([]mcp.Content{&mcp.TextContent{Text: string(r.Params.Arguments)}},
				content...)}, nil
		})
}

func (s *fixture) log(t *testing.T) string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(s.home, ".parley-agent", "*", "log.jsonl"))
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestACallOfAToolWithAnInvalidNameDoesNotEndTheConversation(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newFixture(t, calls(scriptedmodel.Call{Name: "functions.execute_bash", ID: "functions.execute_bash:0"},
			scriptedmodel.Call{Name: strings.Repeat("long", 40), ID: "call:1"}), says("Done."), says("Again."))
		c := s.launch(t, []string{"--model", model}).mustOpen()
		c.mustPrompt("work")
		c.mustPrompt("again")
		if !s.model.Requests()[2].Contains("There is no tool with this name.") {
			t.Errorf("the model receives %q", s.model.Requests()[2].Said())
		}
	})
}

func TestATextOnlyModelGetsNoImagesAfterTwoRefusals(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		s := newScript(t, scriptedmodel.Script{TextOnly: true, Steps: []scriptedmodel.Step{says("One."), says("Two."),
			calls(editor(map[string]any{"command": "view", "path": "picture.png"})), says("Three.")}})
		s.write(t, "picture.png", string(picture(t, 10, 10)))
		c := s.launch(t, []string{"--model", model}).mustOpen()
		for range 2 {
			if _, err := c.promptWith(nil, *acp.Text("look"), imageOf(picture(t, 10, 10)))(); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(c.find(`"agent_thought_chunk"`, `"parley.dev/notice":true`, "refused images of this")); n != 2 {
			t.Errorf("the user was told %d times", n)
		}
		c.mustPrompt("view the picture")
		requests := s.model.Requests()
		if len(requests) != 6 { // two refused, two repeated without images, two for the last prompt
			t.Errorf("%d requests", len(requests))
		}
		if last := requests[len(requests)-1]; !last.Contains("look") || !last.Contains("An image was here") ||
			!last.Contains("refuses images") {
			t.Errorf("the model receives %q", last.Said())
		}
		if strings.Count(s.log(t), `"kind":"repaired"`) != 2 {
			t.Error("the repairs are not in the log")
		}
		// Another model in the same session still gets images.
		second := s.launch(t, []string{"--model", model + "-2"})
		second.session = c.session
		_ = c.cmd.Process.Kill()
		<-c.exited
		if err := second.call(acp.MethodLoadSession, second.params(), &struct{}{}); err != nil {
			t.Fatal(err)
		}
		if _, err := second.promptWith(nil, *acp.Text("look"), imageOf(picture(t, 10, 10)))(); err != nil {
			t.Fatal(err)
		}
		if got := s.model.Requests()[6]; got.Turns[len(got.Turns)-1].Images != 1 {
			t.Errorf("the other model receives %+v", got.Turns[len(got.Turns)-1])
		}
	})
}

func TestARefusedHistoryIsRepaired(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		refused := func(message string) scriptedmodel.Step {
			return scriptedmodel.Step{Failure: &scriptedmodel.Failure{Kind: scriptedmodel.BadRequest, Message: message}}
		}
		s := newFixture(t, calls(bash("echo of the command")),
			refused("messages.1.content.0.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"), says("One."),
			refused("messages.1: not this either"), refused("Your credit balance is too low."), says("Three."))
		c := s.launch(t, []string{"--model", model}).mustOpen()
		c.mustPrompt("work")
		if len(c.find(`"agent_thought_chunk"`, "They were rewritten as text")) != 1 {
			t.Errorf("updates: %s", c.received())
		}
		repaired := s.model.Requests()[2]
		if !repaired.Contains("A call of the tool execute_bash") || !repaired.Contains("of the command") ||
			!repaired.Contains("work") || repaired.Result("call_0_0") != nil {
			t.Errorf("the model receives %q", repaired.Said())
		}
		for _, want := range []string{"not this either", "credit balance"} {
			if _, err := c.prompt("again"); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		c.mustPrompt("and again")
		if strings.Count(s.log(t), `"kind":"repaired"`) != 1 {
			t.Error("the history was repaired without reason")
		}
	})
}

func TestTheModelGetsOnlyImagesThatTheAPIAccepts(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
		addTool(server, "browser_shot", `{"type":"object"}`,
			&mcp.ImageContent{Data: picture(t, 100, 9000), MIMEType: "image/jpeg"},
			&mcp.ImageContent{Data: []byte("BM picture"), MIMEType: "image/bmp"})
		s := newFixture(t, calls(scriptedmodel.Call{Name: "browser_shot"},
			editor(map[string]any{"command": "view", "path": "wide.png"})), says("Done."), says("Seen."))
		s.write(t, "wide.png", string(picture(t, 9000, 10)))
		c := s.launch(t, []string{"--model", model})
		c.servers = serve(t, server)
		c.mustOpen().mustPrompt("look")
		images := 0
		for _, turn := range s.model.Requests()[1].Turns {
			images += turn.Images
		}
		if images != 2 || !s.model.Requests()[1].Contains("it is not a PNG, JPEG, GIF or WebP image") {
			t.Errorf("the model receives %d images and %q", images, s.model.Requests()[1].Said())
		}
		if _, err := c.promptWith(nil, *acp.Text("and this?"), imageOf([]byte("no picture")))(); err != nil {
			t.Fatal(err)
		}
		if !s.model.Requests()[2].Contains("An image belongs to this message, but you cannot see it") {
			t.Errorf("the model receives %q", s.model.Requests()[2].Said())
		}
	})
}

func TestToolsWithUnusualNamesAndSchemasAreOffered(t *testing.T) {
	t.Parallel()
	onBothAPIs(t, func(t *testing.T, model string) {
		server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
		addTool(server, "docs_attach.file", `{"type":"object","anyOf":[`+
			`{"properties":{"page":{"type":"string"},"content":{"type":"string"}},"required":["page","content"]},`+
			`{"properties":{"page":{"type":"string"},"url":{"type":"string"}},"required":["page","url"]}]}`)
		for i := range 140 {
			addTool(server, fmt.Sprintf("big_tool%03d", i), `{"type":"object","properties":{"tags":{"type":"array"}}}`)
		}
		s := newFixture(t, calls(scriptedmodel.Call{Name: "docs_attach_file", Input: json.RawMessage(`{"page":"p"}`)}),
			says("Done."), says("Again."))
		c := s.launch(t, []string{"--model", model})
		c.servers = serve(t, server)
		c.mustOpen().mustPrompt("work")
		c.mustPrompt("again")
		first := s.model.Requests()[0]
		if len(first.Tools) != 128 || !first.Offers("execute_bash") {
			t.Errorf("%d tools", len(first.Tools))
		}
		for _, tool := range first.Tools {
			if tool.Name == "docs_attach_file" && (!strings.Contains(string(tool.Schema), `"url"`) ||
				!strings.Contains(string(tool.Schema), `"required":["page"]`)) {
				t.Errorf("the schema is %s", tool.Schema)
			}
		}
		if got := s.model.Requests()[1].Result("call_0_0"); got == nil || got.Text != `{"page":"p"}` {
			t.Errorf("the result is %+v", got)
		}
		if n := len(c.find("The session has 144 tools", "big_tool124", "and 6 more")); n != 1 {
			t.Errorf("the user was told %d times: %s", n, c.received())
		}
	})
}

func TestATurnEndsIfTheModelRepeatsItself(t *testing.T) {
	t.Parallel()
	same, other := calls(bash("cat missing")), calls(bash("ls"))
	for name, c := range map[string]struct {
		steps []scriptedmodel.Step
		want  string
	}{
		"one call": {[]scriptedmodel.Step{other, same, same, same, same}, "the same call of execute_bash 4 times"},
		"two calls": {[]scriptedmodel.Step{same, other, same, other, same, other, same, other},
			"alternated 4 times between the same two calls"},
		"other results": {[]scriptedmodel.Step{calls(bash("date +%N")), calls(bash("date +%N")), calls(bash("date +%N")),
			calls(bash("date +%N")), calls(bash("date +%N"))}, ""},
		"waiting": {[]scriptedmodel.Step{calls(scriptedmodel.Call{Name: "execute_bash",
			Input: json.RawMessage(`{"command":"sleep 1.5","timeout":0.1}`)}), wait, wait, wait, wait, wait}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBothAPIs(t, func(t *testing.T, model string) {
				s := newFixture(t, append(c.steps, says("Done."))...)
				client := s.launch(t, []string{"--model", model}).mustOpen()
				if c.want == "" {
					client.mustPrompt("work")
					return
				}
				_, err := client.prompt("work")
				failure, ok := errors.AsType[*acp.Error](err)
				if !ok || failure.Data.Kind != "stuck" || !strings.Contains(failure.Message, c.want) {
					t.Fatalf("got %v", err)
				}
				client.mustPrompt("The file has another name.")
			})
		})
	}
}

var wait = calls(scriptedmodel.Call{Name: "execute_bash",
	Input: json.RawMessage(`{"command":"","is_input":true,"timeout":0.1}`)})
