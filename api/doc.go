// Package api is fencelock over HTTP: routes, handlers, the checks of requests, and the one table that
// converts errors to problems. It holds no state and no lock logic. openapi.yaml describes the same contract,
// and tests compare the two.
//
// Resources in paths. A resource may contain slashes, and both
// /locks/orders/42 and /locks/orders%2F42 name orders/42: everything after
// /locks/ is the resource, percent-decoded once. In /guarded/, a last segment that is literally "history"
// requests the history. To reach a record whose name ends so, encode its last slash:
// /guarded/orders%2Fhistory.
//
// A grant that no client can read is released: if the caller has gone before its lease was written, the server
// releases the lease. The exception is a request with an Idempotency-Key: another request of the same caller
// may have received the same lease, so the server leaves it to that request, or to its TTL.
//
// Long-lived requests (streams, acquires that wait) end when their caller loses access; see
// Server.whileAllowed.
package api
