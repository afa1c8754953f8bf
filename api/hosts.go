package api

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// AnyHost in Hosts.Names permits every name.
const AnyHost = "*"

// Hosts are the host names that a listener without access control accepts. Otherwise a web page whose name
// resolves to this server's address (DNS rebinding) could call the server from the browser of a user who
// can reach it.
type Hosts struct {
	// Listen is the listener's configured address, host:port.
	Listen string
	// Names are further hosts, without ports; AnyHost permits all.
	Names []string
}

// serves reports whether the host is accepted. Loopback and the listener's own address always are. On a
// listener of all addresses, every IP address is accepted, because a rebinding page uses a name. A request
// without a Host (HTTP/1.0) does not come from a browser.
func (h Hosts) serves(host string) bool {
	name := hostname(host)
	own := hostname(h.Listen)
	ip, err := netip.ParseAddr(name)
	isIP := err == nil
	switch {
	case host == "", name == "localhost", isIP && ip.Unmap().IsLoopback(), name == own:
		return true
	case slices.Contains(h.Names, AnyHost), slices.ContainsFunc(h.Names, func(n string) bool { return strings.EqualFold(n, name) }):
		return true
	}
	ownIP, err := netip.ParseAddr(own)
	return isIP && (own == "" || err == nil && ownIP.IsUnspecified())
}

// hostname returns a Host without its port, brackets and final dot, in lower case.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// hostError is errHost with the refused host.
type hostError struct{ host string }

func (e *hostError) Error() string {
	return fmt.Sprintf("%s: %q; without access control the server accepts loopback addresses, the address that it listens on, and the names in FENCELOCK_ALLOWED_HOSTS, which have no port", errHost, e.host)
}

func (e *hostError) Is(target error) bool { return target == errHost }

// OnlyHosts refuses requests for other hosts. It is for listeners without access control.
func (s *Server) OnlyHosts(hosts Hosts, next http.Handler) http.Handler {
	return s.answer(func(w *exchange, r *http.Request) error {
		if !hosts.serves(r.Host) {
			return &hostError{host: r.Host}
		}
		next.ServeHTTP(w, r)
		return nil
	})
}
