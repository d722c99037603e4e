package v1alpha1_test

import (
	"strings"
	"testing"
)

func TestSessionClassNamesAreDNSLabels(t *testing.T) { namesAreDNSLabels(t, "SessionClass") }

func TestWhatASessionClassMaySay(t *testing.T) {
	for name, c := range map[string]struct{ spec, field string }{
		"nothing":                    {"{}", ""},
		"a default within its bound": {"lifetimes: {maxDuration: {default: 1h, max: 8h}}", ""},
		"a default without a bound":  {"lifetimes: {maxDuration: {default: 1h, max: 0s}}", ""},
		"a default over its bound": {"lifetimes: {maxDuration: {default: 9h, max: 8h}}",
			"spec.lifetimes.maxDuration"},
		"a lifetime that is no duration": {"lifetimes: {idleTimeout: {default: soon}}",
			"spec.lifetimes.idleTimeout.default"},
		"a range":                          {"network: {egressAllow: [10.0.0.0/8, 'fd01::/16']}", ""},
		"a range that is none":             {"network: {egressAllow: [ten]}", "spec.network.egressAllow[0]"},
		"an authority":                     {"network: {caBundle: '-----BEGIN CERTIFICATE----- …'}", ""},
		"an authority that is a file name": {"network: {caBundle: /etc/ssl/ca.crt}", "spec.network.caBundle"},
		"an authority with a dash lost": {"network: {caBundle: '----BEGIN CERTIFICATE----- …'}",
			"spec.network.caBundle"},
		"an authority and its key": {"network: {caBundle: '-----BEGIN CERTIFICATE----- … -----BEGIN EC PRIVATE " +
			"KEY-----'}", "spec.network.caBundle"},
		"a factor":                         {"resources: {maxFactor: 8}", ""},
		"a factor that is none":            {"resources: {maxFactor: 3}", "spec.resources.maxFactor"},
		"a workspace without a size":       {"workspace: {ttl: 1h}", "spec.workspace.size"},
		"a workspace that is kept a week":  {"workspace: {size: 1Gi, ttl: 168h}", ""},
		"ended pods that are kept a day":   {"lifetimes: {endedPodTTL: 24h}", ""},
		"ended pods that go at once":       {"lifetimes: {endedPodTTL: 0s}", ""},
		"ended pods for more than a year":  {"lifetimes: {endedPodTTL: 8761h}", "spec.lifetimes.endedPodTTL"},
		"no restarts at all":               {"maxRestarts: 0", ""},
		"nobody's sessions":                {"maxSessionsPerUser: 0", "spec.maxSessionsPerUser"},
		"a budget that is none":            {"maxBudgetPerTask: much", "spec.maxBudgetPerTask"},
		"a pull policy that is none":       {"images: {pullPolicy: Sometimes}", "spec.images.pullPolicy"},
		"the user id of the cluster":       {"images: {runAsUser: 0}", ""},
		"a user id that there cannot be":   {"images: {runAsUser: -1}", "spec.images.runAsUser"},
		"resources that are no quantities": {"resources: {limits: {cpu: many}}", "spec.resources.limits.cpu"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, create(t, object(t, "SessionClass", "", c.spec)), c.field, "")
		})
	}
}

func TestTheProxiesOfASessionClass(t *testing.T) {
	const secret, noURL = "without user name and password", "must be the URL of a proxy"
	for proxy, message := range map[string]string{
		"":                              "",
		"http://proxy.example.com:3128": "",
		"https://proxy:443/":            "",
		"socks5://[2001:db8::1]:1080":   "",
		"http://ada:hunter2@proxy:1":    secret,
		"ada:hunter2@proxy:1":           secret,
		"http://hunter2@proxy":          secret,
		"nonsense":                      noURL,
		"ftp://proxy:21":                noURL,
		"http://":                       noURL,
		"http://proxy:1/?token=hunter2": noURL,
		"http://proxy:port":             noURL,
	} {
		for _, field := range []string{"httpProxy", "httpsProxy"} {
			t.Run(field+" "+proxy, func(t *testing.T) {
				path := ""
				if message != "" {
					path = "spec.network." + field
				}
				err := create(t, object(t, "SessionClass", "", "network: {"+field+": '"+proxy+"'}"))
				expect(t, err, path, message)
				if err != nil && strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the answer repeats the password: %v", err)
				}
			})
		}
	}
}
