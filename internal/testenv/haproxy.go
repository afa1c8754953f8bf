package testenv

import "testing"

// HAProxy is an HAProxy that belongs to one test, which may freeze, end and restart it.
type HAProxy struct{ webProxy }

// StartHAProxy starts an HAProxy with the configuration, in which LISTEN is replaced by the address on which
// the proxy listens. The program is found in the same way as in StartNginx.
func StartHAProxy(t testing.TB, config string) *HAProxy {
	t.Helper()
	return &HAProxy{startWebProxy(t, webProgram{
		name: "haproxy", pkg: "haproxy", file: "haproxy.cfg",
		args:   func(string) []string { return []string{"-db", "-f", "haproxy.cfg"} },
		config: func(string) string { return config },
		taken:  "cannot bind socket",
	})}
}
