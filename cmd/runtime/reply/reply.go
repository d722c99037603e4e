// Package reply answers HTTP requests with JSON.
package reply

import (
	"encoding/json"
	"net/http"
)

// JSON answers with a status and a value.
func JSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

// Refuse answers with a status, and with what is wrong as clients of the existing service read it.
func Refuse(w http.ResponseWriter, code int, detail string) {
	JSON(w, code, map[string]string{"detail": detail})
}
