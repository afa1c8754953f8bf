package server

import (
	"fmt"
	"net"
	"strings"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/version"
)

// banner says what runs, and shows two workers as commands to paste into a shell. The first worker is
// paused until its lease has ended, and its write is then refused.
func banner(public, admin net.Addr, mode string, cfg config.Config, security *security) string {
	text := `fencelock VERSION: MODE
API SCHEME://PUBLIC  ·  metrics ADMINSCHEME://ADMIN/metrics  ·  contract SCHEME://PUBLIC/openapi.yaml
`
	if cfg.Console {
		text += "In a browser: SCHEME://PUBLIC/console\n"
	}
	const try = `
Try it in another terminal:

  api=http://PUBLIC; json='Content-Type: application/json'
  token() { sed -n 's/^Fencing-Token: \([0-9]*\).*/\1/p'; }
  # worker 1 takes the lock for a second, and is paused for longer than that
  old=$(curl -si $api/locks -H "$json" -d '{"resource":"orders/42","holder":"worker-1","ttl_ms":1000}' | token); sleep 1.5
  # worker 2 takes it over, with a larger token, and writes: 200
  new=$(curl -si $api/locks -H "$json" -d '{"resource":"orders/42","holder":"worker-2","ttl_ms":1000}' | token)
  curl -si -X PUT $api/guarded/orders/42 -H "Fencing-Token: $new" -H "$json" -d '{"by":"worker-2"}'
  # worker 1 wakes up and writes with its old token: 412, and nothing is lost
  curl -si -X PUT $api/guarded/orders/42 -H "Fencing-Token: $old" -H "$json" -d '{"by":"worker-1"}'

`
	if security.keeper == nil && security.proofs == nil && security.scheme() == "http" { // otherwise the commands would need credentials or https
		text += try
	}
	adminScheme := "http"
	if !cfg.OpenAdmin() {
		adminScheme = security.scheme()
	}
	return strings.NewReplacer(
		"ADMINSCHEME", adminScheme,
		"SCHEME", security.scheme(),
		"PUBLIC", reachable(public),
		"ADMIN", reachable(admin),
		"VERSION", version.String(),
		"MODE", mode,
	).Replace(text)
}

// reachable returns an address that a client on this machine can use.
func reachable(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	return fmt.Sprintf("localhost:%d", tcp.Port)
}
