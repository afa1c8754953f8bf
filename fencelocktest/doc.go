// Package fencelocktest starts a real server of fencelock inside a test of an application, over HTTP, with its
// locks and guarded records in a temporary file.
//
//	func TestDeposit(t *testing.T) {
//		service := fencelocktest.Start(t)
//		locks := service.Client()
//		…
//		service.End("accounts/1")           // as if its TTL had passed
//		service.LoseNextResponse()          // to a request that is carried out
//		other := service.Hold("accounts/1") // another process has it
//		service.AwaitWaiters("accounts/1", 1)
//		other.Release()
//	}
//
// It is the production server, without access control and the other engines: it refuses what a production
// server refuses, and leases expire by the clock. A lease that requests no TTL gets 3 s, so that a test that
// lost a lease need not wait for long.
package fencelocktest
