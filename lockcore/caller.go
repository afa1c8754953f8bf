package lockcore

import "context"

type callerKey struct{}

// WithCaller says on whose behalf the calls under ctx are made. A lease id is sealed
// for its caller: for any other caller, the lease has ended (ErrNotHeld). The empty
// caller is one like any other. No server keeps a table for that, and the nodes know
// no callers.
func WithCaller(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// CallerOf returns what WithCaller said, "" for nothing.
func CallerOf(ctx context.Context) string {
	caller, _ := ctx.Value(callerKey{}).(string)
	return caller
}
