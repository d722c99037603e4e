package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/parley-dev/parley/api/v1alpha1"
)

// Models maps models to prices and limits. The key is provider/model, or only the model if it has
// the same price at all providers.
type Models map[string]Model

// Model contains the prices of a model in US dollars per million tokens, and other properties of
// the model. A missing value is unknown. If CacheRead or CacheWrite is missing, cached tokens of
// that kind cost as much as other input tokens.
type Model struct {
	Input      Decimal `json:"input,omitempty"`
	Output     Decimal `json:"output,omitempty"`
	CacheRead  Decimal `json:"cacheRead,omitempty"`
	CacheWrite Decimal `json:"cacheWrite,omitempty"`
	// ContextWindow is the size of the context window in tokens.
	ContextWindow int64 `json:"contextWindow,omitempty"`
	// MaxOutput is the highest number of output tokens of a call. If a spending limit applies,
	// requests without an output limit get this limit.
	MaxOutput int64 `json:"maxOutput,omitempty"`
	// ReasoningEffort and Temperature apply to users whose settings do not set them.
	ReasoningEffort string      `json:"reasoningEffort,omitempty"`
	Temperature     json.Number `json:"temperature,omitempty"`
	// API is APIResponses if the provider serves the model only through the responses API.
	API string `json:"api,omitempty"`
}

// APIResponses is OpenAI's responses API.
const APIResponses = "responses"

// efforts are the valid values of ReasoningEffort.
var efforts = []string{"", "none", "minimal", "low", "medium", "high", "xhigh"}

// Decimal is a decimal number in its written form, so that prices are exact.
type Decimal string

// decimalForm bounds the number of digits, because exact arithmetic with many digits is slow.
var decimalForm = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,12})?([eE]-?[0-9])?$`)

// UnmarshalJSON accepts a number, or a text with a number.
func (d *Decimal) UnmarshalJSON(text []byte) error {
	written := string(bytes.TrimSpace(text))
	if strings.HasPrefix(written, `"`) {
		if err := json.Unmarshal(text, &written); err != nil {
			return err
		}
	}
	if !decimalForm.MatchString(written) {
		return fmt.Errorf("%q is not a price in dollars", written)
	}
	*d = Decimal(written)
	return nil
}

// ModelOverrides is a key of the ConfigMap with models. Entries under this key take precedence:
// their fields replace the fields of the same model under other keys.
const ModelOverrides = "overrides"

// ParseModels reads the data of the ConfigMap with models: each value is YAML or JSON with a Model
// for each name. The key ModelOverrides has a special meaning. All other keys of the ConfigMap only
// group the models. ParseModels returns the valid entries, and the errors of the invalid entries.
func ParseModels(data map[string]string) (Models, error) {
	models := Models{}
	var errs []error
	keys := slices.Sorted(maps.Keys(data))
	if at := slices.Index(keys, ModelOverrides); at >= 0 {
		keys = append(slices.Delete(keys, at, at+1), ModelOverrides) // read the overrides last
	}
	for _, key := range keys {
		entries := map[string]json.RawMessage{}
		if err := yaml.UnmarshalStrict([]byte(data[key]), &entries); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(entries)) {
			defaults, known := models[name]
			if key != ModelOverrides {
				defaults = Model{}
			}
			model, err := parseModel(name, entries[name], defaults)
			if err == nil && known && key != ModelOverrides {
				err = errors.New("occurs twice")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: model %s: %w", key, name, err))
				continue
			}
			models[name] = model
		}
	}
	return models, errors.Join(errs...)
}

// parseModel reads a model from its text. A field that is missing in the text gets its value from
// defaults.
func parseModel(name string, text json.RawMessage, defaults Model) (model Model, err error) {
	model = defaults
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	switch err := decoder.Decode(&model); {
	case err != nil:
		return model, err
	case strings.TrimSpace(name) == "":
		return model, errors.New("has no name")
	case (model.Input == "") != (model.Output == ""):
		return model, errors.New("must have both prices input and output, or neither")
	case model.Input == "" && (model.CacheRead != "" || model.CacheWrite != ""):
		return model, errors.New("must have the prices input and output, because it has prices for cached tokens")
	case model.ContextWindow < 0:
		return model, errors.New("contextWindow is negative")
	case model.MaxOutput < 0:
		return model, errors.New("maxOutput is negative")
	case !slices.Contains(efforts, model.ReasoningEffort):
		return model, fmt.Errorf("reasoningEffort: %q is unknown", model.ReasoningEffort)
	case model.API != "" && model.API != APIResponses:
		return model, fmt.Errorf("api: %q is unknown; must be %s or absent", model.API, APIResponses)
	}
	return model, nil
}

// dated matches a date or "latest" at the end of a model's name.
var dated = regexp.MustCompile(`[-@](20[0-9]{6}|20[0-9]{2}-[0-9]{2}-[0-9]{2}|latest)$`)

// Find looks up a model, and returns an empty entry if there is none. It also tries the name
// without a date at the end, and without a prefix such as a gateway's provider. The provider may be
// empty.
func (m Models) Find(provider, name string) Model {
	for _, name := range []string{name, dated.ReplaceAllString(name, "")} {
		names := []string{name, name[strings.LastIndex(name, "/")+1:]}
		if provider != "" {
			names = append([]string{provider + "/" + name}, names...)
		}
		for _, candidate := range names {
			if model, found := m[candidate]; found {
				return model
			}
		}
	}
	return Model{}
}

// HasPrice reports whether a model has a price. The name comes from the settings: provider/model,
// or only the model. If the provider is missing and no base URL is set, HasPrice derives the
// provider from the model's name. If a base URL is set, its endpoint may use this name for a model
// of any provider, so the provider stays unknown.
func (m Models) HasPrice(name, baseURL string) bool {
	provider, model, named := strings.Cut(name, "/")
	if !named {
		provider, model = "", name
		if baseURL == "" {
			provider = v1alpha1.ModelProvider(name)
		}
	}
	return m.Find(strings.ToLower(provider), model).Input != ""
}
