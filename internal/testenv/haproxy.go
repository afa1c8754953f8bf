package testenv

import "testing"

// HAProxy is an HAProxy of a test's own, which it may freeze, end and restart.
type HAProxy struct{ webProxy }

// StartHAProxy starts an HAProxy with the configuration, where LISTEN is replaced by the
// address that it listens on. It is found as StartNginx finds nginx.
func StartHAProxy(t testing.TB, config string) *HAProxy {
	t.Helper()
	return &HAProxy{startWebProxy(t, webProgram{
		name: "haproxy", pkg: "haproxy", file: "haproxy.cfg",
		args:   func(string) []string { return []string{"-db", "-f", "haproxy.cfg"} },
		config: func(string) string { return config },
		taken:  "cannot bind socket",
	})}
}
