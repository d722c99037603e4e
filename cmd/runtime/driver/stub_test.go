package driver_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-dev/parley/cmd/runtime/process"
)

// If the environment variable stubVariable is set, the test binary acts as a stub agent. Each line
// of a message is an order to the stub.
const stubVariable = "STUB_AGENT"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == process.ConfineCommand {
		fmt.Fprintln(os.Stderr, process.Become(os.Args[2], os.Args[3:]))
		os.Exit(127)
	}
	process.Confiner = filepath.Base(os.Args[0])
	if os.Getenv(stubVariable) == "" {
		os.Exit(m.Run())
	}
	(&stub{can: os.Getenv(stubVariable), waiting: map[string]chan json.RawMessage{}}).run()
}

type stub struct {
	can     string
	mu      sync.Mutex
	waiting map[string]chan json.RawMessage
	// prompted is set from the start of a turn until the turn ends or is cancelled. cancelled is
	// closed when the turn is cancelled.
	prompted  bool
	cancelled chan struct{}
	asked     int
}

func (s *stub) print(message map[string]any) {
	message["jsonrpc"] = "2.0"
	line, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Println(string(line))
}

func (s *stub) update(text string, args ...any) {
	var update any
	if err := json.Unmarshal(fmt.Appendf(nil, text, args...), &update); err != nil {
		panic(err)
	}
	s.print(map[string]any{"method": "session/update", "params": map[string]any{"sessionId": "s1", "update": update}})
}

func (s *stub) run() {
	for in := bufio.NewReaderSize(os.Stdin, 1<<20); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params json.RawMessage `json:"params"`
			Result json.RawMessage `json:"result"`
		}
		if json.Unmarshal([]byte(line), &m) != nil {
			continue
		}
		if m.Method == "" {
			s.mu.Lock()
			s.waiting[string(m.ID)] <- m.Result
			s.mu.Unlock()
			continue
		}
		if file, err := os.OpenFile(os.Getenv("HEARD"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
			_, _ = file.WriteString(m.Method + " " + string(m.Params) + "\n")
			_ = file.Close()
		}
		s.hear(m.ID, m.Method, m.Params)
		if m.Method == "session/new" && s.can == "plaindeaf" {
			<-time.After(time.Hour) // the stub stops reading
		}
	}
}

func (s *stub) hear(id json.RawMessage, method string, params json.RawMessage) {
	answer := func(result string) { s.print(map[string]any{"id": id, "result": json.RawMessage(result)}) }
	switch method {
	case "initialize":
		can := map[string]string{
			"":       `{"mcpCapabilities":{"http":true},"promptCapabilities":{"image":true}}`,
			"deaf":   `{}`,
			"load":   `{"loadSession":true,"mcpCapabilities":{"http":true}}`,
			"resume": `{"sessionCapabilities":{"resume":{}},"mcpCapabilities":{"http":true}}`,
			// With "exactload", the stub acts like Parley's agent. With "exact", it acts like Parley's agent
			// after the loss of its sessions: it announces loadSession, but the method session/load fails.
			"exactload": `{"loadSession":true,"mcpCapabilities":{"http":true},"_meta":{"parley.dev/exactReplay":true}}`,
			"steers": `{"loadSession":true,"mcpCapabilities":{"http":true},"promptCapabilities":{"image":true},` +
				`"_meta":{"parley.dev/exactReplay":true,"parley.dev/steers":true}}`,
			"exact": `{"loadSession":true,"mcpCapabilities":{"http":true},"_meta":{"parley.dev/exactReplay":true,` +
				`"parley.dev/replays":true,"parley.dev/reason":true}}`,
		}[strings.TrimPrefix(s.can, "plain")]
		answer(`{"protocolVersion":1,"agentCapabilities":` + can + `}`)
	case "session/new":
		if why, err := os.ReadFile(os.Getenv("HEARD") + ".refusal"); err == nil {
			s.print(map[string]any{"id": id, "error": map[string]any{"code": -32000, "message": string(why)}})
			return
		}
		answer(`{"sessionId":"s1"}`)
	case "session/load":
		if s.can == "plainexact" {
			s.print(map[string]any{"id": id, "error": map[string]any{"code": -32000, "message": "unknown session"}})
			return
		}
		if s.can == "plainsteers" { // replay the update that the first process sent
			s.update(`{"sessionUpdate":"user_message_chunk","_meta":{"parley.dev/seq":1,"parley.dev/message":"3"}}`)
		} else if s.can != "plainexactload" { // the session of plainexactload is empty
			s.update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"told again"}}`)
		}
		answer(`{}`)
	case "session/resume":
		answer(`{}`)
	case "session/cancel":
		s.mu.Lock()
		if s.prompted { // a cancel without a turn is ignored
			s.prompted = false
			close(s.cancelled)
		}
		s.mu.Unlock()
	case "session/prompt":
		var p struct {
			Prompt []struct{ Text string } `json:"prompt"`
		}
		if json.Unmarshal(params, &p) != nil || len(p.Prompt) == 0 {
			os.Exit(9)
		}
		var texts []string
		for _, block := range p.Prompt {
			texts = append(texts, block.Text)
		}
		s.mu.Lock()
		s.prompted, s.cancelled = true, make(chan struct{})
		cancelled := s.cancelled
		s.mu.Unlock()
		go s.obey(id, cancelled, strings.Split(strings.Join(texts, "\n"), "\n"))
	}
}

func (s *stub) obey(id json.RawMessage, cancelled <-chan struct{}, orders []string) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.prompted = false
	}()
	reason := "end_turn"
	for n, order := range orders {
		word, rest, _ := strings.Cut(order, " ")
		quoted, _ := json.Marshal(rest)
		call := fmt.Sprintf("c%d", n)
		switch word {
		case "say":
			for _, piece := range strings.SplitAfter(rest, " ") {
				s.say(piece)
			}
		case "think":
			s.update(`{"sessionUpdate":"agent_thought_chunk","content":{"type":"text","text":%s}}`, quoted)
		case "run":
			s.update(`{"sessionUpdate":"tool_call","toolCallId":%q,"title":"run","kind":"execute","status":"pending",`+
				`"rawInput":{}}`, call)
			s.update(`{"sessionUpdate":"tool_call_update","toolCallId":%q,"status":"in_progress","rawInput":{"command":%s}}`,
				call, quoted)
			s.update(`{"sessionUpdate":"tool_call_update","toolCallId":%q,"status":"completed","content":[{"type":"content",`+
				`"content":{"type":"text","text":"out"}}],"rawOutput":{"exit_code":3}}`, call)
		case "ask":
			if !s.ask(call, quoted) {
				s.update(`{"sessionUpdate":"tool_call_update","toolCallId":%q,"status":"failed"}`, call)
				continue
			}
			s.update(`{"sessionUpdate":"tool_call_update","toolCallId":%q,"status":"completed"}`, call)
		case "pair": // asks two questions at once
			var answered sync.WaitGroup
			for _, call := range []string{"p1", "p2"} {
				answered.Go(func() { s.ask(call, quoted) })
			}
			answered.Wait()
		case "request": // the order contains the permission request or names its file
			if text, err := os.ReadFile(rest); err == nil {
				rest = string(text)
			}
			s.say(s.request(json.RawMessage(rest)))
		case "raw": // an update, or a file of updates
			if text, err := os.ReadFile(rest); err == nil {
				rest = string(text)
			}
			for line := range strings.Lines(rest) {
				s.update("%s", line)
			}
		case "noise":
			if text, err := os.ReadFile(rest); err == nil {
				rest = string(text)
			}
			fmt.Println(rest)
		case "hang":
			<-cancelled
			reason = "cancelled"
		case "ignore":
			select {}
		case "die":
			os.Exit(3)
		case "fail":
			if text, err := os.ReadFile(rest); err == nil {
				rest = string(text)
			}
			s.print(map[string]any{"id": id, "error": map[string]any{"code": -32000, "message": rest,
				"data": map[string]any{"kind": "authentication"}}})
			return
		case "stop":
			reason = rest
		case "wait":
			for {
				if _, err := os.Stat(rest); err == nil {
					break
				}
				<-time.After(5 * time.Millisecond)
			}
		}
	}
	s.print(map[string]any{"id": id, "result": map[string]any{"stopReason": reason}})
}

func (s *stub) say(piece string) {
	text, _ := json.Marshal(piece)
	s.update(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%s}}`, text)
}

func (s *stub) ask(call string, command []byte) bool {
	risk := "LOW"
	if strings.Contains(string(command), "rm") {
		risk = "HIGH"
	}
	return s.request(fmt.Appendf(nil,
		`{"toolCall":{"toolCallId":%q,"title":"ask","kind":"execute","status":"pending","rawInput":{"command":%s,`+
			`"security_risk":%q}},
		"options":[{"optionId":"n","kind":"reject_once"},{"optionId":"y","kind":"allow_once"}]}`, call, command, risk)) == "y"
}

// request requests permission. It returns the chosen option, or the outcome if no option was
// chosen.
func (s *stub) request(params json.RawMessage) string {
	answered := make(chan json.RawMessage, 1)
	s.mu.Lock()
	s.asked++
	id := fmt.Sprintf(`"ask%d"`, s.asked)
	s.waiting[id] = answered
	s.mu.Unlock()
	s.print(map[string]any{"id": json.RawMessage(id), "method": "session/request_permission", "params": params})
	var answer struct {
		Outcome struct{ Outcome, OptionID string }
		Meta    map[string]string `json:"_meta"`
	}
	text := <-answered
	switch {
	case json.Unmarshal(text, &answer) != nil:
		return "refused"
	case answer.Meta["parley.dev/reason"] != "":
		return answer.Outcome.OptionID + ": " + answer.Meta["parley.dev/reason"]
	case answer.Outcome.OptionID != "":
		return answer.Outcome.OptionID
	}
	return answer.Outcome.Outcome
}
