package edge

import (
	"errors"
	"fmt"
	"net"
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

// Check refuses a host that is not accepted, with a *HostError. Loopback and the listener's own address always are. On a
// listener of all addresses, every IP address is accepted, because a rebinding page uses a name. A request
// without a Host (HTTP/1.0) does not come from a browser.
func (h Hosts) Check(host string) error {
	name := hostname(host)
	own := hostname(h.Listen)
	switch { // names first: parsing a name as an address would allocate the error
	case host == "", name == "localhost", name == own:
		return nil
	case slices.Contains(h.Names, AnyHost), slices.ContainsFunc(h.Names, func(n string) bool { return strings.EqualFold(n, name) }):
		return nil
	}
	ip, err := netip.ParseAddr(name)
	isIP := err == nil
	ownIP, err := netip.ParseAddr(own)
	if isIP && (ip.Unmap().IsLoopback() || own == "" || err == nil && ownIP.IsUnspecified()) {
		return nil
	}
	return &HostError{host: host}
}

// hostname returns a Host without its port, brackets and final dot, in lower case.
func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// ErrHost is what every *HostError is.
var ErrHost = errors.New("this server does not accept this host name")

// HostError is ErrHost with the refused host.
type HostError struct{ host string }

func (e *HostError) Error() string {
	return fmt.Sprintf("%s: %q; without access control the server accepts loopback addresses, the address that it listens on, and the names in FENCELOCK_ALLOWED_HOSTS, which have no port", ErrHost, e.host)
}

// Unwrap returns ErrHost.
func (e *HostError) Unwrap() error { return ErrHost }
