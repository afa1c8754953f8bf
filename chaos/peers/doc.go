// Package peers puts other locks through the faults that fencelock goes through:
// the same Redis nodes, the same times to live, the same moments. It is a module
// of its own, so that the product does not depend on them.
//
//	cd chaos/peers && go test -v -timeout 0 -args -rounds 20
//
// prints one table. Each round has a resource of its own and two clients, A and
// B. What is counted:
//
//   - double leases: B got the lock while A's was still valid by A's own library;
//   - tokens: B's is not larger than A's, where the lock has any;
//   - lost updates: A, paused past its lease between reading and writing,
//     overwrote what B wrote and was told had been written;
//   - stale extensions: A's extension succeeded although B held the lock in between;
//   - without service: from the fault until a fresh resource can be locked.
package peers
