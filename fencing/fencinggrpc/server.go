package fencinggrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/fencelock/fencelock/fencing"
)

// Claimer raises the mark of a resource to a token, and refuses a stale one with a *fencing.StaleTokenError.
// Every fencing.Guard implements it.
type Claimer interface {
	// Claim is the method of fencing.Guard. It must be safe for concurrent use.
	Claim(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error)
}

// UnaryServer returns the interceptor for calls with one request and one response. It claims every token of a
// call with the guard, in their order in the metadata, and then runs the handler with the tokens in its
// context (see Token). A call without tokens also reaches the handler. With a nil guard nothing is claimed.
// Then the handler must claim before its first read, or write in a transaction that claims.
func UnaryServer(guard Claimer) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		ctx, err := admit(ctx, guard)
		if err != nil {
			return nil, err
		}
		response, err := handle(ctx, req)
		return response, refuse(err)
	}
}

// StreamServer is UnaryServer for streams. The tokens are claimed once, when the stream begins, so that
// only the storage's own check stops a holder whose lease ends during the stream.
func StreamServer(guard Claimer) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		ctx, err := admit(stream.Context(), guard)
		if err != nil {
			return err
		}
		return refuse(handle(srv, serverStream{stream, ctx}))
	}
}

type serverStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // a stream's context is a method without parameters
}

func (s serverStream) Context() context.Context { return s.ctx }

// admit reads and claims the tokens of a call. Its errors are statuses.
func admit(ctx context.Context, guard Claimer) (context.Context, error) {
	list, err := incoming(ctx)
	if err != nil {
		return nil, statusOf(codes.InvalidArgument, reasonInvalid, err.Error(), nil)
	}
	for _, claim := range list {
		if guard == nil {
			break
		}
		if _, err := guard.Claim(withClaim(ctx, claim), claim.Resource, claim.Token); err != nil {
			return nil, refuse(err)
		}
	}
	if len(list) == 1 {
		ctx = withClaim(ctx, list[0])
	}
	if len(list) > 0 {
		ctx = context.WithValue(ctx, claimsKey{}, list)
	}
	return ctx, nil
}

// withClaim puts one claim where package fencing's FromContext and ProofFromContext find it.
func withClaim(ctx context.Context, claim fencing.Claim) context.Context {
	return fencing.NewProofContext(fencing.NewContext(ctx, claim.Token), claim.Proof)
}

type claimsKey struct{}

// Lease returns the resources and tokens of a call, for guards that take a whole lease, such as pgguard.Do;
// ok is false for a call without tokens. If the call names one resource, fencing.FromContext and
// fencing.ProofFromContext also return its token and proof.
func Lease(ctx context.Context) (lease fencing.Lease, ok bool) {
	list, ok := ctx.Value(claimsKey{}).(claims)
	return list, ok
}

// Token returns the token of a call for a resource. A handler names the resource that it writes, so a token
// of another resource is useless. The error is the status INVALID_ARGUMENT, which the handler should return.
func Token(ctx context.Context, resource string) (fencing.Token, error) {
	list, _ := ctx.Value(claimsKey{}).(claims)
	for _, claim := range list {
		if claim.Resource == resource {
			return claim.Token, nil
		}
	}
	return 0, statusOf(codes.InvalidArgument, reasonTokenRequired, "the call has no fencing token for this resource: make it with the lease in its context", map[string]string{"resource": resource})
}
