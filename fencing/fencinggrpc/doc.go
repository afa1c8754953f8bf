// Package fencinggrpc carries fencing tokens through gRPC, from the holder of a lease to the service that
// owns the storage that the tokens protect. It is a module of its own, because it needs gRPC.
//
// The client's interceptors put the tokens of the lease that is in a call's context into the call's
// metadata. The server's take them out again, claim them with a guard, and refuse a stale one
// before the handler runs. The handler asks for the token of the resource that it writes:
//
//	conn, err := grpc.NewClient(address, grpc.WithUnaryInterceptor(fencinggrpc.UnaryClient()), …)
//	_, err = accounts.Deposit(fencinggrpc.NewContext(ctx, lease), request)
//
//	server := grpc.NewServer(grpc.UnaryInterceptor(fencinggrpc.UnaryServer(guard)))
//	func (s *accounts) Deposit(ctx context.Context, r *pb.DepositRequest) (*pb.Account, error) {
//		token, err := fencinggrpc.Token(ctx, "accounts/"+r.Id)
//		…
//	}
//
// The claim before the handler is no substitute for the check in the storage: a handler may freeze
// after it. Write by a guard that compares the token in the same atomic step as the write, and
// return its error: the interceptors turn it into a status, and the client's turn that into
// the same error again.
//
// # Metadata
//
// Each resource of the lease has one value of each key, in the same order: fencing-token, a
// decimal number, and fencing-resource-bin, its name in UTF-8. With [WithProofs] there is also
// fencing-proof, which is a secret.
//
// # Status codes
//
//   - FAILED_PRECONDITION: the token is stale (*fencing.StaleTokenError). Never repeat the call with
//     it: acquire the lock again.
//   - INVALID_ARGUMENT: the call has no token for the resource, a malformed one, or no proof where
//     one is needed.
//   - PERMISSION_DENIED: the proof is not one of this resource and token (*fencing.ProofError).
//   - UNAVAILABLE: the guard's storage did not respond (fencing.ErrGuardUnavailable). The call may
//     have taken effect, and is safe to repeat with the same token as long as the lease is held.
//
// Each has an ErrorInfo of the domain [Domain] among its details. Any other error of a handler
// passes unchanged.
package fencinggrpc
