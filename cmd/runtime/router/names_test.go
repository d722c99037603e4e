package router_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-dev/parley/api/session"
)

func TestToolsWithEqualNamesAreBothServed(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "x_echo"}, func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult,
		any, error) {
		return say("remote"), nil, nil
	})
	remote := serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	f := start(t, session.ToolServers{
		Stdio: []session.StdioServer{stdio("localhost_x", "normal")},
		SHTTP: []session.RemoteServer{{URL: strings.Replace(remote, "127.0.0.1", "localhost", 1)}},
	})
	var answers []string
	for _, tool := range []string{"localhost_x_echo", "localhost_x_echo_2"} {
		answer, err := f.call(t, tool, "stdio")
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, answer)
	}
	slices.Sort(answers)
	if !slices.Equal(answers, []string{"remote", "stdio"}) {
		t.Errorf("the answers are %q", answers)
	}
}

// serveNamed serves the tool "other" and all added tools. Each tool returns its own name.
func serveNamed(t *testing.T) (remote session.RemoteServer, add func(name string), remove func(name string)) {
	t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	add = func(name string) {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(context.Context, *mcp.CallToolRequest, text) (*mcp.CallToolResult,
			any, error) {
			return say("%s", name), nil, nil
		})
	}
	add("other")
	url := serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	remote = session.RemoteServer{URL: strings.Replace(url, "127.0.0.1", "localhost", 1)}
	return remote, add, func(name string) { server.RemoveTools(name) }
}

// expectGrown waits until the listed tools with "grown" in their names are exactly these tools.
func (f *fixture) expectGrown(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	eventually(t, strings.Join(want, " and ")+" are listed", func() bool {
		got = slices.DeleteFunc(f.tools(t), func(name string) bool { return !strings.Contains(name, "grown") })
		return slices.Equal(got, want)
	})
}

func TestTwoToolsOfAServerNeverShareAName(t *testing.T) {
	remote, add, _ := serveNamed(t)
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("localhost_x", "normal")},
		SHTTP: []session.RemoteServer{remote}})
	f.expect(t, "localhost_x_grow", "", "grown")
	f.expectGrown(t, "localhost_x_grown")
	add("x_grown")
	f.expectGrown(t, "localhost_x_grown", "localhost_x_grown_2")
	add("x_grown_2")
	f.expectGrown(t, "localhost_x_grown", "localhost_x_grown_2", "localhost_x_grown_2_2")
	f.expect(t, "localhost_x_grown", "", "I am new")
	f.expect(t, "localhost_x_grown_2", "", "x_grown")
	f.expect(t, "localhost_x_grown_2_2", "", "x_grown_2")
}

func TestTheNameOfARemovedToolCanBeReused(t *testing.T) {
	remote, add, remove := serveNamed(t)
	f := start(t, session.ToolServers{Stdio: []session.StdioServer{stdio("localhost_x", "normal")},
		SHTTP: []session.RemoteServer{remote}})
	add("x_grown")
	f.expectGrown(t, "localhost_x_grown")
	remove("x_grown")
	f.expectGrown(t)
	f.expect(t, "localhost_x_grow", "", "grown")
	f.expectGrown(t, "localhost_x_grown")
	f.expect(t, "localhost_x_grown", "", "I am new")
	// The added tool is listed as localhost_x_grown_2, even after localhost_x_grown becomes free.
	add("x_grown")
	f.expectGrown(t, "localhost_x_grown", "localhost_x_grown_2")
	f.expect(t, "localhost_x_shrink", "", "shrunk")
	f.expectGrown(t, "localhost_x_grown_2")
	add("more_grown")
	f.expectGrown(t, "localhost_more_grown", "localhost_x_grown_2")
}

func TestALongToolNameIsShortenedTheSameWayEachTime(t *testing.T) {
	remote, add, _ := serveNamed(t)
	long := strings.Repeat("long-name_", 10)
	exact := strings.Repeat("x", 64-len("localhost_"))
	for _, name := range []string{long + "a", long + "b", exact, exact + "y", strings.Repeat("é", 40)} {
		add(name)
	}
	var before map[string]string
	for range 2 {
		f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{remote}})
		answers := map[string]string{}
		for _, name := range f.tools(t) {
			if len(name) > 64 || !strings.HasPrefix(name, "localhost_") || !utf8.ValidString(name) {
				t.Errorf("a tool is named %q", name)
			}
			answer, err := f.call(t, name, "")
			if err != nil {
				t.Fatal(err)
			}
			answers[answer] = name
		}
		if len(answers) != 6 || answers[exact] != "localhost_"+exact {
			t.Errorf("the names are %q", answers)
		}
		if before != nil && !maps.Equal(before, answers) {
			t.Errorf("the names were %q and are %q", before, answers)
		}
		before = answers
	}
}

func TestAShortenedToolNameIsUnique(t *testing.T) {
	remote, add, _ := serveNamed(t)
	long := strings.Repeat("grown", 20)
	add(long)
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{remote}})
	short := f.tools(t)[0]
	// The full name of this second tool is equal to the shortened name of the first tool.
	add(strings.TrimPrefix(short, "localhost_"))
	eventually(t, "both are listed", func() bool { return len(f.tools(t)) == 3 })
	f.expect(t, short, "", long)
	for _, name := range f.tools(t) {
		if len(name) > 64 {
			t.Errorf("a tool is named %q", name)
		}
		if name != short && strings.Contains(name, "grown") {
			f.expect(t, name, "", strings.TrimPrefix(short, "localhost_"))
		}
	}
}

func TestAShortenedToolNameContainsNoPartOfASecret(t *testing.T) {
	remote, add, _ := serveNamed(t)
	// This name contains the API key. If the router only cut the name to the maximum length, the
	// result would still contain all letters of the key except the last one.
	add(strings.Repeat("x", 64-len("localhost__0123456789")-len(apiKey)+1) + apiKey + "-and-more-of-it")
	f := start(t, session.ToolServers{SHTTP: []session.RemoteServer{remote}})
	names := f.tools(t)
	if len(names) != 2 || strings.Contains(strings.Join(names, " "), apiKey[:8]) {
		t.Errorf("the tools are %q", names)
	}
}
