package main

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/parley-dev/parley/hack/test/scriptedmodel"
)

var script = scriptedmodel.Script{
	Steps: []scriptedmodel.Step{
		{
			Text: "I will look at the script and its test first.",
			Calls: []scriptedmodel.Call{
				{Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{"command": "cat greet.sh test.sh; sh test.sh"})},
			},
			Usage: &scriptedmodel.Usage{Input: 2100, Output: 60},
		},
		{
			Text: "The name is missing. I will add it.",
			Calls: []scriptedmodel.Call{
				{Name: "str_replace_editor", Input: scriptedmodel.Input(map[string]any{
					"command": "str_replace", "path": "greet.sh", "old_str": `echo "Hello, nobody"`, "new_str": `echo "Hello, $1"`,
				})},
			},
			Usage: &scriptedmodel.Usage{Input: 2300, Output: 80},
		},
		{
			Calls: []scriptedmodel.Call{
				{Name: "execute_bash", Input: scriptedmodel.Input(map[string]any{
					"command": "sh test.sh && git switch -q -c demo && git commit -q -a -m 'Greet by name'",
				})},
			},
			Usage: &scriptedmodel.Usage{Input: 2500, Output: 70},
		},
		{
			Calls: []scriptedmodel.Call{
				{Name: "create_pull_request", Input: scriptedmodel.Input(map[string]any{
					"title": "Greet by name", "body": "greet.sh greets its first argument, so test.sh passes.",
				})},
			},
			Usage: &scriptedmodel.Usage{Input: 2600, Output: 60},
		},
		{Text: "greet.sh greets its first argument now, and the test passes. The pull request is open.",
			Usage: &scriptedmodel.Usage{Input: 2700, Output: 40}},
	},
}

func serveScript() (address string, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("serve the scripted model: %w", err)
	}
	server := &http.Server{Handler: scriptedmodel.New(script), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }()
	return "http://" + listener.Addr().String() + "/v1", nil
}
