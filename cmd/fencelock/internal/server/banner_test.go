package server

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

// The start message names only what is there: the console unless it is switched off, and the metrics with the scheme
// of their listener.
func TestBannerAddresses(t *testing.T) {
	public, admin := &net.TCPAddr{IP: net.IPv4zero, Port: 1}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 2}
	for name, c := range map[string]struct {
		cfg      config.Config
		security security
		says     []string
		not      string
	}{
		"plain":              {config.Config{Console: true, AdminListen: "127.0.0.1:2"}, security{}, []string{"http://localhost:1/console", "http://10.0.0.1:2/metrics", "curl"}, "https"},
		"no console":         {config.Config{AdminListen: "127.0.0.1:2"}, security{}, []string{"API http://localhost:1 "}, "/console"},
		"TLS":                {config.Config{Console: true, AdminListen: "10.0.0.1:2"}, security{certs: &loaded[tls.Config]{}}, []string{"https://localhost:1/console", "https://10.0.0.1:2/metrics"}, "http://"},
		"TLS, admin without": {config.Config{AdminListen: "127.0.0.1:2"}, security{certs: &loaded[tls.Config]{}}, []string{"API https://localhost:1 ", "http://10.0.0.1:2/metrics"}, "curl"},
	} {
		text := banner(public, admin, "mode", c.cfg, &c.security)
		for _, part := range c.says {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %q in %s", name, part, text)
			}
		}
		if strings.Contains(text, c.not) {
			t.Errorf("%s: %q in %s", name, c.not, text)
		}
	}
}
