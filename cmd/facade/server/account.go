package server

import (
	"context"
	"net/http"
	"time"

	"k8s.io/utils/ptr"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/api/v1alpha1"
	"github.com/parley-dev/parley/cmd/facade/auth"
	"github.com/parley-dev/parley/cmd/facade/cluster"
	"github.com/parley-dev/parley/cmd/facade/markdown"
	"github.com/parley-dev/parley/cmd/facade/settings"
	"github.com/parley-dev/parley/cmd/internal/answer"
	"github.com/parley-dev/parley/cmd/internal/limits"
)

func (s *server) accountOperations() map[string]map[string]operation {
	listed := func(list func(context.Context, request) ([]string, error)) map[string]operation {
		return map[string]operation{"GET": {do: func(ctx context.Context, r request) (any, error) {
			names, err := list(ctx, r)
			if err != nil {
				return nil, cluster.Refusal(ctx, err, nil)
			}
			return append([]string{}, names...), nil
		}}}
	}
	read := func(do func(context.Context, *auth.User) (any, error)) operation {
		return operation{do: func(ctx context.Context, r request) (any, error) { return do(ctx, r.user) }}
	}
	write := func(do func(context.Context, *auth.User, []byte) (any, error)) operation {
		return operation{do: func(ctx context.Context, r request) (any, error) { return do(ctx, r.user, r.body) },
			readsBody: true, queue: limits.SettingsWrites}
	}
	unset := read(s.settings.UnsetProviders)
	unset.queue = limits.SettingsWrites
	return map[string]map[string]operation{
		"/api/settings": {"GET": read(s.settings.Get), "POST": write(s.settings.Post)},
		"/api/options/models": listed(func(ctx context.Context, r request) ([]string, error) {
			agent := r.URL.Query().Get("agent")
			if agent == "" {
				effective, err := settings.Effective(ctx, s.cluster, r.user.Settings)
				if err != nil {
					return nil, err
				}
				agent = ptr.Deref(effective.Spec.Agent, v1alpha1.DefaultAgent)
			}
			return s.cluster.Models(ctx, agent)
		}),
		"/api/options/agents": listed(func(ctx context.Context, _ request) ([]string, error) {
			return s.cluster.Agents(ctx)
		}),
		"/api/options/security-analyzers": listed(func(context.Context, request) ([]string, error) {
			return []string{"llm"}, nil
		}),
		"/api/secrets": {"GET": read(s.settings.Secrets), "POST": write(s.settings.AddSecret)},
		"/api/secrets/{name}": {
			"PUT": {do: func(ctx context.Context, r request) (any, error) {
				return s.settings.ChangeSecret(ctx, r.user, r.PathValue("name"), r.body)
			}, readsBody: true, queue: limits.SettingsWrites},
			"DELETE": {do: func(ctx context.Context, r request) (any, error) {
				return s.settings.DeleteSecret(ctx, r.user, r.PathValue("name"))
			}, queue: limits.SettingsWrites},
		},
		"/api/add-git-providers":     {"POST": write(s.settings.AddProviders)},
		"/api/unset-provider-tokens": {"POST": unset},
		"/api/usage":                 {"GET": {do: s.usage, queue: limits.ArchiveReads}},
		"/api/signin/link":           {"POST": {do: s.link}},
		"/api/markdown":              {"POST": {do: s.renderMarkdown, readsBody: true, maxBody: maxRenderBody}},
	}
}

const (
	// maxRenderBody limits the body of a request to render texts.
	maxRenderBody = 3 * markdown.MaxText
	// renderPause is the length of the pause after each rendering, as a multiple of the time that
	// the rendering took. The same user cannot render during the pause, so the texts of one user
	// take at most 5% of the time of one CPU.
	renderPause = 19
)

// renderMarkdown renders Markdown texts for the page, up to markdown.MaxText bytes in total. Texts
// that do not fit stay plain text. The requests of a user run one after another.
func (s *server) renderMarkdown(ctx context.Context, r request) (any, error) {
	if len(r.body) > maxRenderBody {
		return nil, answer.LargerThan(maxRenderBody)
	}
	answered, err := s.budget.Take(r.user.ID(), limits.RenderRequests)
	if err != nil {
		return nil, err
	}
	defer answered()
	done, err := s.budget.Wait(ctx, r.user.ID(), limits.Renders)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	defer func() { time.AfterFunc(renderPause*time.Since(begun), done) }()
	texts, details := rest.DecodeMarkdown(r.body)
	if len(details) > 0 {
		return nil, answer.Invalid(details...)
	}
	rendered, left := rest.Rendered{HTML: []string{}}, markdown.MaxText
	for _, text := range texts {
		render := markdown.Plain
		if len(text) <= left {
			render, left = markdown.Render, left-len(text)
		}
		html := render(text)
		if err := r.held.Take(int64(len(html))); err != nil {
			return nil, err
		}
		rendered.HTML = append(rendered.HTML, html)
	}
	return rendered, nil
}

// clientConfig serves the first request of OpenHands' web client. The request needs no key, because
// the response holds no user data.
func clientConfig(w http.ResponseWriter, _ *http.Request) {
	answer.Write(w, map[string]any{
		"APP_MODE": "oss", "GITHUB_CLIENT_ID": "", "POSTHOG_CLIENT_KEY": "",
		"FEATURE_FLAGS": map[string]bool{"ENABLE_BILLING": false, "HIDE_LLM_SETTINGS": false,
			"HIDE_MICROAGENT_MANAGEMENT": true},
	}, nil)
}
