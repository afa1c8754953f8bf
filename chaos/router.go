package chaos

import (
	"bytes"
	"strconv"
)

// userMark begins the password by which the router of a node recognises the server of a connection. All servers must
// have the same list of nodes, but each needs a proxy of its own to each node, which a fault can cut.
const userMark = "chaos-server-"

// whose finds the server of a connection in the first bytes that it sends.
func whose(first []byte) (server int, known bool) {
	_, rest, found := bytes.Cut(first, []byte(userMark))
	if !found || len(rest) == 0 {
		return 0, false
	}
	server, err := strconv.Atoi(string(rest[:1]))
	return server, err == nil
}
