package fencinggrpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock/fencing"
)

type leaseKey struct{}

// NewContext returns a context whose calls carry the tokens of the lease, on connections that
// have the client's interceptors. A *client.Lease is a fencing.Lease, and so is a fencing.Claim.
func NewContext(ctx context.Context, lease fencing.Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, lease)
}

// ClientOption changes what the client's interceptors send.
type ClientOption func(*clientInterceptor)

// WithProofs also sends the fencing_proof of each token, for services whose storage demands it.
// A proof is a secret: use it only on connections with transport security, to a service that you trust.
func WithProofs() ClientOption { return func(c *clientInterceptor) { c.proofs = true } }

// UnaryClient returns the interceptor for calls with one request and one response. It does not change a call
// whose context has no lease (see NewContext). If the lease has no valid token, the call fails before it is
// sent, with fencing.ErrMalformedToken or fencing.ErrMalformedResource.
//
// The error of a call that the server's interceptors refuse is both a status and its cause: for a stale
// token, errors.Is(err, fencing.ErrStaleToken) and errors.Is(err, fencing.ErrLeaseLost) are true.
func UnaryClient(options ...ClientOption) grpc.UnaryClientInterceptor {
	c := newClientInterceptor(options)
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, err := c.outgoing(ctx)
		if err != nil {
			return err
		}
		return cause(invoke(ctx, method, req, reply, conn, opts...))
	}
}

// StreamClient is UnaryClient for streams. The tokens are sent when the stream begins.
func StreamClient(options ...ClientOption) grpc.StreamClientInterceptor {
	c := newClientInterceptor(options)
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, begin grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, err := c.outgoing(ctx)
		if err != nil {
			return nil, err
		}
		stream, err := begin(ctx, desc, conn, method, opts...)
		if err != nil {
			return nil, cause(err)
		}
		return clientStream{stream}, nil
	}
}

type clientInterceptor struct{ proofs bool }

func newClientInterceptor(options []ClientOption) *clientInterceptor {
	c := &clientInterceptor{}
	for _, option := range options {
		option(c)
	}
	return c
}

func (c *clientInterceptor) outgoing(ctx context.Context) (context.Context, error) {
	lease, ok := ctx.Value(leaseKey{}).(fencing.Lease)
	if !ok {
		return ctx, nil
	}
	return outgoing(ctx, lease, c.proofs)
}

// clientStream finds the cause of the error that ends a stream, which RecvMsg returns.
type clientStream struct{ grpc.ClientStream }

func (s clientStream) RecvMsg(m any) error { return cause(s.ClientStream.RecvMsg(m)) }

// refusal is a status, together with the error that it represents.
type refusal struct {
	status *status.Status
	cause  error
}

func (r *refusal) Error() string              { return r.cause.Error() }
func (r *refusal) Unwrap() error              { return r.cause }
func (r *refusal) GRPCStatus() *status.Status { return r.status }
