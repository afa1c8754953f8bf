// Package api is fencelock over HTTP: routes, handlers, the checks of requests,
// and the one table that turns errors into problems. It holds no state and no
// lock logic; openapi.yaml says the same contract, and the tests hold the two
// against each other.
//
// Resources in paths. A resource may contain slashes, and both
// /locks/orders/42 and /locks/orders%2F42 name orders/42: everything after
// /locks/ is the resource, percent-decoded once. In /guarded/, a last segment
// that is literally "history" asks for the history; a record of such a name is
// reached by encoding its last slash: /guarded/orders%2Fhistory.
//
// A grant that no client can read is released: when the caller has gone away
// before its lease was written, the lease is released. Except under an
// Idempotency-Key: there another request of the same caller may have been
// given this very lease, so it is left to that one, or to its TTL.
//
// What stays open for long (streams, acquires that wait) ends when its caller is
// locked out, see Server.whileAllowed.
package api
