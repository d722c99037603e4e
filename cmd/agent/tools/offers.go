package tools

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// maxOffered is the largest number of tools that all providers accept in a request.
	maxOffered = 128
	// maxNamed is the largest number of tools that a notice lists by name.
	maxNamed = 10
)

// Offered returns the tools that the model gets, in a stable order.
func (s *Set) Offered(ctx context.Context) []*Tool {
	offered, _ := s.reduced(ctx)
	return offered
}

// LeftOut returns a notice about the tools that the model does not get because there are too many.
// The notice is empty if the model gets all tools.
func (s *Set) LeftOut(ctx context.Context) string {
	offered, left := s.reduced(ctx)
	if len(left) == 0 {
		return ""
	}
	var names []string
	for _, tool := range left[:min(len(left), maxNamed)] {
		names = append(names, tool.Name)
	}
	if more := len(left) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("The session has %d tools, but models accept at most %d. The agent cannot use these tools: %s. "+
		"Remove tool servers from the settings to make room for them.", len(offered)+len(left), maxOffered,
		strings.Join(names, ", "))
}

// reduced returns the tools that the model gets, and the tools that are left out. It never leaves
// out the agent's own tools. The tool servers share the remaining places equally.
func (s *Set) reduced(ctx context.Context) (offered, left []*Tool) {
	all := s.all(ctx)
	if len(all) <= maxOffered {
		return all, nil
	}
	servers := map[string][]*Tool{}
	for _, tool := range all[len(s.own):] {
		server, _, _ := strings.Cut(tool.Name, "_") // a tool's name begins with its server's name
		servers[server] = append(servers[server], tool)
	}
	kept, room := map[*Tool]bool{}, maxOffered-len(s.own)
	for rank := 0; len(kept) < room; rank++ {
		for _, server := range slices.Sorted(maps.Keys(servers)) {
			if rank < len(servers[server]) && len(kept) < room {
				kept[servers[server][rank]] = true
			}
		}
	}
	offered = slices.Clone(s.own)
	for _, tool := range all[len(s.own):] {
		if kept[tool] {
			offered = append(offered, tool)
		} else {
			left = append(left, tool)
		}
	}
	return offered, left
}

func (s *Set) all(ctx context.Context) []*Tool {
	all := slices.Clone(s.own)
	for _, tool := range s.servers.tools(ctx) {
		if find(s.own, tool.Name) != nil {
			continue // the agent's own tools take precedence
		}
		if s.rateAction && tool.describe(nil).Acts {
			tool.askRisk()
		}
		all = append(all, tool)
	}
	return all
}
