// Package chaos runs the whole service (real Redis nodes, Postgres and built fencelock servers) under faults.
// Clients do guarded read-modify-writes through its HTTP API, and the package compares their observations with
// the promises of docs/GUARANTEES.md:
//
//   - Tokens: if one acquisition of a resource was granted before another was
//     sent, it has the smaller token. No two share a token. No extension succeeds
//     after a larger token was granted.
//   - The guarded records are linearizable (porcupine), refuse exactly the
//     stale tokens, and hold every acknowledged write once and every other one
//     at most once.
//   - At most one lease of a resource is valid at a time, unless a clock jumped.
//   - A granted lease can be extended and released until its validity ends, unless
//     somebody ended it. No client below its limits is refused because of them.
//   - While a client waits for a resource, the resource is not idle, and not locked without a
//     holder, for more than a second per fault.
//   - After the faults every resource can be locked in time, and no lock is
//     left on a node.
//
// Servers that keep their locks in an engine (FENCELOCK_STORE) are tested in the same way: an [Engine] says
// where it is and which faults it can have. On engines, every acquisition must get its response within a
// second after its wait.
//
// One [Stand] serves many rounds. A round ([Stand.Run]) has one fault or several,
// begun and ended by the test's own goroutine while the clients work. The faults
// and the clients follow a seed; how the machine schedules them does not.
//
// This is test code in ordinary files, because the tests of several packages share it. Production code must
// not import it (internal/archtest).
package chaos
