// Package chaos runs the whole service (real Redis nodes, Postgres and built
// fencelock servers) under faults, lets clients do guarded read-modify-writes
// through its HTTP API, and checks what they saw against what is promised in
// docs/GUARANTEES.md:
//
//   - Tokens: of two acquisitions of a resource, one answered before the other
//     was sent has the smaller token; no two share one; no extension succeeds
//     after a larger token was answered.
//   - The guarded records are linearizable (porcupine), refuse exactly the
//     stale tokens, and hold every acknowledged write once and every other one
//     at most once.
//   - At most one lease of a resource is valid at a time, unless a clock jumped.
//   - A lease that was granted is extended and released until its validity ends, unless
//     somebody ended it; nobody below its limits is refused for one.
//   - While somebody waits for a resource, it is not idle or locked for nobody for more than
//     a second a fault.
//   - After the faults every resource can be locked in time, and no lock is
//     left on a node.
//
// Servers that keep their locks in an engine (FENCELOCK_STORE) are tried alike: an
// [Engine] says where it is and what can be done to it. On engines no acquisition may
// be answered a second after its wait.
//
// One [Stand] serves many rounds. A round ([Stand.Run]) has one fault or several,
// begun and ended by the test's own goroutine while the clients work. The faults
// and the clients follow a seed; how the machine schedules them does not.
//
// This is test code that lies in ordinary files, since the tests of several
// kinds share it; production code must not import it (internal/archtest).
package chaos
