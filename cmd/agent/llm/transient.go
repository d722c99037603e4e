package llm

import (
	"net/http"
	"strconv"
	"time"
)

// transient reports whether a retry may succeed. The header X-Should-Retry takes precedence over
// the status, as in the providers' SDKs.
func (r providerError) transient(kind Kind) bool {
	switch {
	case kind != RateLimit && kind != Provider && kind != Network, r.header.Get("X-Should-Retry") == "false",
		r.quotaExceeded():
		return false
	case r.header.Get("X-Should-Retry") == "true":
		return true
	}
	return r.status == http.StatusOK || // an error within a stream
		r.status == http.StatusRequestTimeout || r.status == http.StatusConflict ||
		r.status == http.StatusTooManyRequests || r.status >= http.StatusInternalServerError
}

// quotaExceeded reports whether the account has no credit. OpenAI reports this with the same status
// as a rate limit, 429.
func (r providerError) quotaExceeded() bool {
	return r.code == "insufficient_quota" || r.kind == "insufficient_quota"
}

// retryAfter returns how long the provider asks to wait before a retry; 0 if it does not ask.
func (r providerError) retryAfter() time.Duration {
	if ms, err := strconv.ParseFloat(r.header.Get("Retry-After-Ms"), 64); err == nil {
		return max(0, time.Duration(ms*float64(time.Millisecond)))
	}
	after := r.header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(after, 64); err == nil {
		return max(0, time.Duration(seconds*float64(time.Second)))
	}
	if at, err := http.ParseTime(after); err == nil {
		return max(0, time.Until(at))
	}
	return r.delay
}
