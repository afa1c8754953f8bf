// Package fencelocktest is a lock service in memory, for the tests of an application.
//
//	func TestDeposit(t *testing.T) {
//		service := fencelocktest.Start(t)
//		locks := service.Client()
//		…
//		service.End("accounts/1")        // as if its time to live had passed
//		service.LoseNextAnswer()         // of a request that was carried out
//		other := service.Hold("accounts/1") // another process has it
//		other.Release()
//	}
//
// It answers like a server of fencelock, over HTTP: locks and their queue, several resources,
// slots, idempotency keys, breaks, guarded records and events. There is no access control and
// no persistence, min_hold_ms and max_hold_ms change nothing, and proofs are not made.
//
// No lease ends by the clock: what a test does not end lasts until it is released. Each gets
// a time to live of 1.5 s, whatever was asked for (SetTTL), so that who keeps it alive
// notices within half a second that it was ended.
package fencelocktest
