package fencing

import "context"

type contextKey struct{}

// NewContext returns a context that carries a token to the code that writes to the storage, in a service that
// gets the token from its callers (see package fencinghttp).
func NewContext(ctx context.Context, token Token) context.Context {
	return context.WithValue(ctx, contextKey{}, token)
}

// FromContext returns the token that NewContext put into the context; ok is false without one.
func FromContext(ctx context.Context) (token Token, ok bool) {
	token, ok = ctx.Value(contextKey{}).(Token)
	return token, ok
}
