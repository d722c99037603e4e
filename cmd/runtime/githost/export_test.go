package githost

import "net/http/httptest"

func Trust(h *Host, server *httptest.Server) { h.client.Transport = server.Client().Transport }
