package fencinggrpc_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/fencing/fencinggrpc"
)

// accounts is a service with one call of each kind, as protoc-gen-go-grpc would describe it: each takes
// the name of an account and returns a text.
type accounts interface {
	Deposit(ctx context.Context, name string) (string, error)
}

// accountsFunc is the service as a function.
type accountsFunc func(ctx context.Context, name string) (string, error)

func (f accountsFunc) Deposit(ctx context.Context, name string) (string, error) { return f(ctx, name) }

const (
	depositMethod = "/bank.Accounts/Deposit"
	followMethod  = "/bank.Accounts/Follow"
)

var accountsDesc = grpc.ServiceDesc{
	ServiceName: "bank.Accounts",
	HandlerType: (*accounts)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Deposit", Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.StringValue)
		if err := decode(in); err != nil {
			return nil, err
		}
		call := func(ctx context.Context, req any) (any, error) {
			text, err := srv.(accounts).Deposit(ctx, req.(*wrapperspb.StringValue).GetValue())
			return wrapperspb.String(text), err
		}
		if intercept == nil {
			return call(ctx, in)
		}
		return intercept(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: depositMethod}, call)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Follow", ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
		in := new(wrapperspb.StringValue)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		text, err := srv.(accounts).Deposit(stream.Context(), in.GetValue())
		if err != nil {
			return err
		}
		return stream.SendMsg(wrapperspb.String(text))
	}}},
}

// deposit is what a generated client does.
func deposit(ctx context.Context, conn *grpc.ClientConn, name string) (string, error) {
	out := new(wrapperspb.StringValue)
	err := conn.Invoke(ctx, depositMethod, wrapperspb.String(name), out)
	return out.GetValue(), err
}

// follow is deposit by a stream.
func follow(ctx context.Context, conn *grpc.ClientConn, name string) (string, error) {
	stream, err := conn.NewStream(ctx, &accountsDesc.Streams[0], followMethod)
	if err != nil {
		return "", err
	}
	out := new(wrapperspb.StringValue)
	if err := errors.Join(stream.SendMsg(wrapperspb.String(name)), stream.CloseSend()); err != nil {
		return "", err
	}
	err = stream.RecvMsg(out)
	return out.GetValue(), err
}

// serve runs the service in memory, and returns a connection to it with the client's interceptors.
func serve(service accounts, guard fencinggrpc.Claimer, options ...fencinggrpc.ClientOption) (conn *grpc.ClientConn, stop func()) {
	const buffer = 1 << 16
	listener := bufconn.Listen(buffer)
	server := grpc.NewServer(grpc.UnaryInterceptor(fencinggrpc.UnaryServer(guard)), grpc.StreamInterceptor(fencinggrpc.StreamServer(guard)))
	server.RegisterService(&accountsDesc, service)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///memory",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(fencinggrpc.UnaryClient(options...)), grpc.WithStreamInterceptor(fencinggrpc.StreamClient(options...)))
	if err != nil {
		panic(err) // the address is a constant
	}
	return conn, func() {
		_ = conn.Close()
		server.Stop()
		serving.Wait()
	}
}

func connect(t *testing.T, service accountsFunc, guard fencinggrpc.Claimer, options ...fencinggrpc.ClientOption) *grpc.ClientConn {
	t.Helper()
	conn, stop := serve(service, guard, options...)
	t.Cleanup(stop)
	return conn
}

// marks is a guard that keeps marks and balances in memory.
type marks struct {
	mu       sync.Mutex
	highest  map[string]fencing.Token
	balances map[string]int
}

func newMarks() *marks {
	return &marks{highest: map[string]fencing.Token{}, balances: map[string]int{}}
}

// Claim raises a mark.
func (m *marks) Claim(_ context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fencing.Record{Resource: resource, Mark: token}, m.raise(resource, token)
}

func (m *marks) raise(resource string, token fencing.Token) error {
	if token < m.highest[resource] {
		return &fencing.StaleTokenError{Resource: resource, Presented: token, Highest: m.highest[resource]}
	}
	m.highest[resource] = token
	return nil
}

// add compares the token and changes the balance in one step.
func (m *marks) add(resource string, token fencing.Token, amount int) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.raise(resource, token); err != nil {
		return 0, err
	}
	m.balances[resource] += amount
	return m.balances[resource], nil
}
