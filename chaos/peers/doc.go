// Package peers runs other lock libraries through the same faults as fencelock: on the same Redis nodes, with
// the same TTLs, at the same moments. It is a module of its own, so that the product does not depend on them.
//
//	cd chaos/peers && go test -v -timeout 0 -args -rounds 20
//
// prints one table. Each round has a resource of its own and two clients, A and B. The table counts:
//
//   - double leases: B got the lock while A's was still valid according to A's library;
//   - tokens: B's token is not larger than A's, if the locks have tokens;
//   - lost updates: A, paused past its lease between reading and writing, overwrote a write of B that B
//     believed to be stored;
//   - stale extensions: A's extension succeeded although B held the lock in between;
//   - without service: from the fault until a new resource can be locked.
package peers
