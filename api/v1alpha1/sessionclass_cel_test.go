package v1alpha1_test

import (
	"strings"
	"testing"
)

func TestSessionClassNamesAreDNSLabels(t *testing.T) { namesAreDNSLabels(t, "SessionClass") }

func TestOnlyValidSessionClassesAreAccepted(t *testing.T) {
	for name, c := range map[string]struct{ spec, field string }{
		"empty spec":              {"{}", ""},
		"a default below its max": {"lifetimes: {maxDuration: {default: 1h, max: 8h}}", ""},
		"a default with max 0s":   {"lifetimes: {maxDuration: {default: 1h, max: 0s}}", ""},
		"a default above its max": {"lifetimes: {maxDuration: {default: 9h, max: 8h}}",
			"spec.lifetimes.maxDuration"},
		"a lifetime that is not a duration": {"lifetimes: {idleTimeout: {default: soon}}",
			"spec.lifetimes.idleTimeout.default"},
		"CIDRs":                           {"network: {egressAllow: [10.0.0.0/8, 'fd01::/16']}", ""},
		"an invalid CIDR":                 {"network: {egressAllow: [ten]}", "spec.network.egressAllow[0]"},
		"a CA bundle":                     {"network: {caBundle: '-----BEGIN CERTIFICATE----- …'}", ""},
		"a CA bundle that is a file name": {"network: {caBundle: /etc/ssl/ca.crt}", "spec.network.caBundle"},
		"a CA bundle with a missing dash": {"network: {caBundle: '----BEGIN CERTIFICATE----- …'}",
			"spec.network.caBundle"},
		"a CA bundle with a private key": {"network: {caBundle: '-----BEGIN CERTIFICATE----- … -----BEGIN EC PRIVATE " +
			"KEY-----'}", "spec.network.caBundle"},
		"a factor of 8":                   {"resources: {maxFactor: 8}", ""},
		"a factor of 3":                   {"resources: {maxFactor: 3}", "spec.resources.maxFactor"},
		"a workspace without a size":      {"workspace: {ttl: 1h}", "spec.workspace.size"},
		"a workspace with a TTL":          {"workspace: {size: 1Gi, ttl: 168h}", ""},
		"ended pods kept for a day":       {"lifetimes: {endedPodTTL: 24h}", ""},
		"ended pods deleted at once":      {"lifetimes: {endedPodTTL: 0s}", ""},
		"ended pods kept over a year":     {"lifetimes: {endedPodTTL: 8761h}", "spec.lifetimes.endedPodTTL"},
		"no restarts":                     {"maxRestarts: 0", ""},
		"no sessions per user":            {"maxSessionsPerUser: 0", "spec.maxSessionsPerUser"},
		"an invalid budget":               {"maxBudgetPerTask: much", "spec.maxBudgetPerTask"},
		"an invalid pull policy":          {"images: {pullPolicy: Sometimes}", "spec.images.pullPolicy"},
		"a user ID chosen by the cluster": {"images: {runAsUser: 0}", ""},
		"a negative user ID":              {"images: {runAsUser: -1}", "spec.images.runAsUser"},
		"an invalid quantity":             {"resources: {limits: {cpu: many}}", "spec.resources.limits.cpu"},
		"spending limits": {"spend: {perUser: {day: '4.50', month: '50'}, perNamespace: {month: '2000'}, " +
			"noticePercent: 90}", ""},
		"a spending limit per day":            {"spend: {perUser: {day: '0.000001'}}", ""},
		"equal spending limits":               {"spend: {perUser: {day: '5', month: '5.0'}}", ""},
		"spending limits without a scope":     {"spend: {noticePercent: 80}", "spec.spend"},
		"a spending limit without a period":   {"spend: {perUser: {}}", "spec.spend.perUser"},
		"a spending limit of nothing":         {"spend: {perUser: {day: '0.00'}}", "spec.spend.perUser.day"},
		"a monthly spending limit of nothing": {"spend: {perNamespace: {month: '0'}}", "spec.spend.perNamespace.month"},
		"a daily limit above the monthly":     {"spend: {perUser: {day: '9.5', month: '9'}}", "spec.spend.perUser.day"},
		"a spending limit in words":           {"spend: {perUser: {month: much}}", "spec.spend.perUser.month"},
		"a spending limit that is a number":   {"spend: {perUser: {month: 50}}", "spec.spend.perUser.month"},
		"a negative spending limit":           {"spend: {perUser: {month: '-1'}}", "spec.spend.perUser.month"},
		"a notice at the limit": {"spend: {perUser: {month: '5'}, noticePercent: 100}",
			"spec.spend.noticePercent"},
		"warm pods":                 {"warm: {size: 3, namespaceSelector: {}}", ""},
		"warm pods in no namespace": {"warm: {size: 3}", "spec.warm.namespaceSelector"},
		"warm pods without a size":  {"warm: {namespaceSelector: {}}", "spec.warm.size"},
		"no warm pods":              {"warm: {size: 0, namespaceSelector: {}}", "spec.warm.size"},
		"too many warm pods":        {"warm: {size: 501, namespaceSelector: {}}", "spec.warm.size"},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, create(t, object(t, "SessionClass", "", c.spec)), c.field, "")
		})
	}
}

func TestInvalidProxiesOfASessionClassAreRefused(t *testing.T) {
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
					t.Errorf("the error contains the password: %v", err)
				}
			})
		}
	}
}
