package githost

import "net/http/httptest"

// Trust makes a host trust the certificate of a server.
func Trust(h *Host, server *httptest.Server) { h.client.Transport = server.Client().Transport }
