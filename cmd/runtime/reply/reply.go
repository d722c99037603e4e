// Package reply writes HTTP responses.
package reply

import (
	"encoding/json"
	"net/http"
)

// JSON writes a status and a JSON value.
func JSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

// Refuse writes a status and an error in the format of OpenHands.
func Refuse(w http.ResponseWriter, code int, detail string) {
	JSON(w, code, map[string]string{"detail": detail})
}
