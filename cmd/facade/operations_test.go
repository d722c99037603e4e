package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parley-dev/parley/api/rest"
	"github.com/parley-dev/parley/hack/test/facadeenv"
)

func codeOf(r reply, want int) error {
	if r.code != want {
		return fmt.Errorf("answered %d %s", r.code, r.body)
	}
	return nil
}

func ownFacade(t *testing.T, args ...string) *facadeenv.Facade {
	t.Helper()
	f, err := startFacade(suite.Env, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// atFacade returns a copy of the person that sends its requests to the facade at this address. It
// waits until that facade accepts the person's key.
func (p *person) atFacade(t *testing.T, url string) *person {
	t.Helper()
	there := *p
	there.url = url
	await(t, func() error {
		if r := there.get(t, "/api/conversations"); r.code == 401 {
			return codeOf(r, 200)
		}
		return nil
	})
	return &there
}

func TestProbesAndOpenAPINeedNoKey(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/alive", "/health", "/ready"} {
		stranger().get(t, path).wants(t, 200).says(t, `{"status": "ok"}`)
	}
	stranger().get(t, "/openapi.json").wants(t, 200).says(t, string(rest.OpenAPI))
	stranger().get(t, "/nowhere").wants(t, 404).says(t, `{"detail": "Not Found"}`)
	refused := stranger().do(t, "PUT", "/api/settings", "").wants(t, 405).says(t, `{"detail": "Method Not Allowed"}`)
	if allow := refused.header.Get("Allow"); allow != "GET, POST" {
		t.Errorf("Allow is %q", allow)
	}
}

func TestRequestBodiesMustBeJSONObjects(t *testing.T) {
	t.Parallel()
	ada := newcomer(t)
	for _, path := range []string{"/api/settings", "/api/conversations"} {
		for body, complaint := range map[string]string{
			"": "body: missing", " ": "body: missing", "{": "body.1: json_invalid", `{"a": }`: "body.7: json_invalid",
			"nonsense": "body.2: json_invalid",
			"null":     "body: model_attributes_type", "[]": "body: model_attributes_type",
			`"text"`: "body: model_attributes_type", "5": "body: model_attributes_type",
		} {
			t.Run(path+" "+body, func(t *testing.T) {
				ada.post(t, path, body).wants(t, 422).complains(t, complaint)
			})
		}
		ada.post(t, path, "{}", "Content-Type", "application/x-www-form-urlencoded").wants(t, 200)
	}
}

func TestLargeBodiesAndFrequentRequestsAreRefused(t *testing.T) {
	t.Parallel()
	f := ownFacade(t, "--max-body-bytes=1000", "--user-rate=0.2", "--user-burst=21")
	ada := newcomer(t).atFacade(t, f.URL) // atFacade sends 1 of 21 requests; a change of settings counts as 10
	ada.post(t, "/api/settings", `{"language": "`+strings.Repeat("x", 1000)+`"}`).wants(t, 413).says(t,
		`{"detail": "Request body too large: at most 1000 bytes"}`)
	ada.post(t, "/api/settings", `{"language": "en"}`).wants(t, 200)
	reply := ada.get(t, "/api/conversations").wants(t, 429).says(t, `{"detail": "Too many requests"}`)
	if after := reply.header.Get("Retry-After"); !regexp.MustCompile(`^[1-5]$`).MatchString(after) {
		t.Errorf("Retry-After is %q", after)
	}
	t.Run("the limit is per user", func(t *testing.T) {
		newcomer(t).atFacade(t, f.URL).get(t, "/api/settings").wants(t, 200)
	})
}

func TestOnlyConfiguredOriginsMayCallTheAPI(t *testing.T) {
	t.Parallel()
	preflight := []string{"Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "x-session-api-key"}
	f := ownFacade(t, "--cors-origins=https://a.example.com,https://b.example.com")
	at := &person{url: f.URL}
	allowed := at.do(t, "OPTIONS", "/api/settings", "", append(preflight, "Origin", "https://b.example.com")...).wants(t,
		204)
	if got := allowed.header.Get("Access-Control-Allow-Origin"); got != "https://b.example.com" {
		t.Errorf("allowed origin is %q", got)
	}
	if got := allowed.header.Get("Access-Control-Allow-Headers"); !strings.Contains(got, rest.KeyHeader) {
		t.Errorf("allowed headers are %q", got)
	}
	for name, p := range map[string]*person{"another origin": at, "none configured": stranger()} {
		refused := p.do(t, "OPTIONS", "/api/settings", "", append(preflight, "Origin", "https://c.example.com")...).wants(t,
			405)
		if got := refused.header.Get("Access-Control-Allow-Origin"); got != "" {
			t.Errorf("%s: allowed origin is %q", name, got)
		}
	}
}

func TestRequestsAreCountedAndLoggedWithoutTheirContent(t *testing.T) {
	t.Parallel()
	f := ownFacade(t)
	ada := newcomer(t).atFacade(t, f.URL)
	value := canary()
	reply := ada.post(t, "/api/settings", `{"llm_api_key": "`+value+`", "security_analyzer": "`+value+`"}`, "X-Request-ID",
		"my-request-1").wants(t, 200)
	if reply.header.Get("X-Request-ID") != "my-request-1" {
		t.Error("the answer lacks the request ID")
	}
	ada.post(t, "/api/settings", `{"max_iterations": "`+value+`"}`).wants(t, 422)
	ada.get(t, "/"+value+"?"+value+"="+value).wants(t, 404)
	(&person{url: f.URL, key: value}).get(t, "/api/settings").wants(t, 401)

	answer, err := http.Get(f.MetricsURL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	metrics, _ := io.ReadAll(answer.Body)
	for _, want := range []string{
		`parley_facade_requests_total{code="200",route="POST /api/settings"} 1`,
		`parley_facade_requests_total{code="422",route="POST /api/settings"} 1`,
		`parley_facade_requests_total{code="404",route="none"} 1`,
		`parley_facade_request_duration_seconds_count{route="POST /api/settings"} 2`,
		`parley_facade_auth_failures_total `,
	} {
		if !bytes.Contains(metrics, []byte(want)) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	await(t, func() error {
		if !regexp.MustCompile(`Served.*my-request-1.*/ada.*POST /api/settings.*"code": ?200`).MatchString(f.Log.String()) {
			return fmt.Errorf("the request is not in the log: %s", f.Log)
		}
		return nil
	})
	for _, secret := range []string{value, ada.key} {
		if strings.Contains(f.Log.String(), secret) || bytes.Contains(metrics, []byte(secret)) {
			t.Error("a value is in the log or the metrics")
		}
	}
}

func TestShutdownFinishesRequestsInFlight(t *testing.T) {
	t.Parallel()
	f := ownFacade(t, "--shutdown-delay=1s")
	ada := newcomer(t).atFacade(t, f.URL)
	// A request with a slow body is in flight when the facade gets the stop signal.
	body, writer := io.Pipe()
	request, err := http.NewRequest("POST", f.URL+"/api/settings", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(rest.KeyHeader, ada.key)
	var slow sync.WaitGroup
	slow.Go(func() {
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = answer.Body.Close() }()
		if answer.StatusCode != 200 {
			t.Errorf("the slow request got %d", answer.StatusCode)
		}
	})
	_, _ = writer.Write([]byte(`{"language": `))
	f.Signal(syscall.SIGTERM)
	await(t, func() error { return codeOf((&person{url: f.URL}).get(t, "/ready"), 503) })
	ada.get(t, "/api/settings").wants(t, 200) // still served, though not ready
	// After the delay, the facade accepts no new connections, and waits for the request on the open
	// connection.
	await(t, func() error {
		if connection, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://")); err == nil {
			return errors.Join(errors.New("the facade still accepts connections"), connection.Close())
		}
		return nil
	})
	_, _ = writer.Write([]byte(`"nl"}`))
	_ = writer.Close()
	slow.Wait()
	<-f.Done
	if code := f.ExitCode(); code != 0 {
		t.Errorf("the facade exited with %d", code)
	}
	if got := *ada.settings(t).Spec.Language; got != "nl" {
		t.Errorf("the language is %s", got)
	}
}

func TestAChangedCertificateIsReloaded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeCertificate(t, cert, key, 1)
	// The suite probes /ready over HTTP, which fails at an HTTPS server. The test therefore starts
	// this facade itself.
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}
	address := facadeenv.FreeAddress()
	process, err := os.StartProcess(binary, []string{
		binary, "--kubeconfig=" + suite.Kubeconfig, "--bind-address=" + address, "--metrics-bind-address=0",
		"--tls-cert-file=" + cert, "--tls-key-file=" + key,
	}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Kill(); _, _ = process.Wait() })
	serves := func(serial int64) func() error {
		return func() error {
			connection, err := tls.Dial("tcp", address,
				&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // the test reads the serial number only
			if err != nil {
				return err
			}
			defer func() { _ = connection.Close() }()
			if got := connection.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != serial {
				return fmt.Errorf("the certificate is number %d", got)
			}
			return nil
		}
	}
	await(t, serves(1))
	writeCertificate(t, cert, key, 2)
	await(t, serves(2))
}

func writeCertificate(t *testing.T, certFile, keyFile string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyData, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{keyFile: {Type: "PRIVATE KEY", Bytes: keyData},
		certFile: {Type: "CERTIFICATE", Bytes: cert}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
