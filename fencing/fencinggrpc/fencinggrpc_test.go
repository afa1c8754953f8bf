package fencinggrpc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/fencing/fencinggrpc"
)

// bundle is a lease of several resources.
type bundle []fencing.Claim

func (b bundle) Claims() []fencing.Claim { return b }

// calls are the two ways to call the service.
var calls = map[string]func(context.Context, *grpc.ClientConn, string) (string, error){"unary": deposit, "stream": follow}

// presented says what a handler finds in its context.
func presented(ctx context.Context, _ string) (string, error) {
	lease, ok := fencinggrpc.Lease(ctx)
	if !ok {
		return "none", nil
	}
	var b strings.Builder
	for _, c := range lease.Claims() {
		fmt.Fprintf(&b, "%s=%s %s;", c.Resource, c.Token, c.Proof)
	}
	token, one := fencing.FromContext(ctx)
	fmt.Fprintf(&b, " %d %t %s", token, one, fencing.ProofFromContext(ctx))
	return b.String(), nil
}

func TestHandlersFindWhatTheCallerHolds(t *testing.T) {
	one := fencing.Claim{Resource: "Konten/Müller\u00a07", Token: fencing.MaxToken, Proof: "k1.secret"}
	two := bundle{{Resource: "a", Token: 1}, {Resource: "b, c", Token: 2}}
	for name, tt := range map[string]struct {
		lease   fencing.Lease
		options []fencinggrpc.ClientOption
		want    string
	}{
		"no lease":         {nil, nil, "none"},
		"no resource":      {bundle{}, nil, "none"},
		"one":              {one, nil, "Konten/Müller\u00a07=9007199254740991 ; 9007199254740991 true "},
		"one, with proofs": {one, []fencinggrpc.ClientOption{fencinggrpc.WithProofs()}, "Konten/Müller\u00a07=9007199254740991 k1.secret; 9007199254740991 true k1.secret"},
		"two":              {two, nil, "a=1 ;b, c=2 ; 0 false "},
		"two, with proofs": {two, []fencinggrpc.ClientOption{fencinggrpc.WithProofs()}, "a=1 ;b, c=2 ; 0 false "},
	} {
		for kind, call := range calls {
			ctx := t.Context()
			if tt.lease != nil {
				ctx = fencinggrpc.NewContext(ctx, tt.lease)
			}
			got, err := call(ctx, connect(t, presented, newMarks(), tt.options...), "7")
			if err != nil || got != tt.want {
				t.Errorf("%s, %s: the handler finds %q, %v; want %q", name, kind, got, err, tt.want)
			}
		}
	}
}

// A stale token is refused before the handler, and the caller gets the guard's error.
func TestStaleTokensAreRefused(t *testing.T) {
	for kind, call := range calls {
		reached := false
		guard := newMarks()
		guard.highest["b"] = 34
		conn := connect(t, func(context.Context, string) (string, error) { reached = true; return "", nil }, guard)
		_, err := call(fencinggrpc.NewContext(t.Context(), bundle{{Resource: "a", Token: 90}, {Resource: "b", Token: 33}}), conn, "7")
		checkStale(t, kind, err, fencing.StaleTokenError{Resource: "b", Presented: 33, Highest: 34})
		if reached {
			t.Errorf("%s: the handler was reached", kind)
		}
		// Without a guard the handler's storage refuses.
		conn = connect(t, func(ctx context.Context, _ string) (string, error) {
			token, err := fencinggrpc.Token(ctx, "b")
			if err == nil {
				_, err = guard.add("b", token, 1)
			}
			return "", fmt.Errorf("deposit: %w", err)
		}, nil)
		_, err = call(fencinggrpc.NewContext(t.Context(), fencing.Claim{Resource: "b", Token: 32}), conn, "7")
		checkStale(t, kind+", by the handler", err, fencing.StaleTokenError{Resource: "b", Presented: 32, Highest: 34})
	}
}

func checkStale(t *testing.T, name string, err error, want fencing.StaleTokenError) {
	t.Helper()
	var stale *fencing.StaleTokenError
	if !errors.As(err, &stale) || *stale != want || !errors.Is(err, fencing.ErrLeaseLost) || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("%s: the caller gets %v (%s)", name, err, status.Code(err))
	}
}

// Each error of a guard has its status, which the caller's interceptor turns into the error again.
func TestStatuses(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		code   codes.Code
		reason string
		cause  error // that the caller's error matches
	}{
		"stale":               {fmt.Errorf("x: %w", &fencing.StaleTokenError{Resource: "a", Presented: 1, Highest: 2}), codes.FailedPrecondition, "STALE_TOKEN", fencing.ErrStaleToken},
		"no proof":            {&fencing.ProofError{Resource: "a", Presented: 1, Missing: true}, codes.InvalidArgument, "PROOF_REQUIRED", fencing.ErrNoProof},
		"a wrong proof":       {&fencing.ProofError{Resource: "a", Presented: 1}, codes.PermissionDenied, "PROOF_REFUSED", fencing.ErrProof},
		"no storage":          {fmt.Errorf("dial db-3.internal: %w", fencing.ErrGuardUnavailable), codes.Unavailable, "GUARD_UNAVAILABLE", fencing.ErrGuardUnavailable},
		"a malformed token":   {fencing.ErrMalformedToken, codes.InvalidArgument, "INVALID_CLAIM", nil},
		"the handler's own":   {status.Error(codes.NotFound, "no account"), codes.NotFound, "", nil},
		"an unexpected error": {errors.New("a defect"), codes.Unknown, "", nil},
		"a deadline":          {context.DeadlineExceeded, codes.DeadlineExceeded, "", nil},
	} {
		for kind, call := range calls {
			_, err := call(t.Context(), connect(t, func(context.Context, string) (string, error) { return "", tt.err }, nil), "7")
			if status.Code(err) != tt.code || reason(err) != tt.reason || tt.cause != nil && !errors.Is(err, tt.cause) || strings.Contains(fmt.Sprint(err, status.Convert(err).Message()), "internal") {
				t.Errorf("%s, %s: the caller gets %v (%s, %q), want %s, %q", name, kind, err, status.Code(err), reason(err), tt.code, tt.reason)
			}
		}
	}
}

// proofs is a guard that notes what it is asked, with the token and the proof in the context.
type proofs struct{ claimed []string }

func (p *proofs) Claim(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	inContext, _ := fencing.FromContext(ctx)
	p.claimed = append(p.claimed, fmt.Sprintf("%s %d %d %s", resource, token, inContext, fencing.ProofFromContext(ctx)))
	return fencing.Record{}, nil
}

// A guard that demands proofs finds that of each token.
func TestGuardsFindProofs(t *testing.T) {
	guard := &proofs{}
	conn := connect(t, presented, guard, fencinggrpc.WithProofs())
	lease := bundle{{Resource: "a", Token: 1, Proof: "k.one"}, {Resource: "b", Token: 2, Proof: "k.two"}}
	if _, err := deposit(fencinggrpc.NewContext(t.Context(), lease), conn, "7"); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(guard.claimed, ", "), "a 1 1 k.one, b 2 2 k.two"; got != want {
		t.Errorf("the guard is asked %q, want %q", got, want)
	}
}

// A status of another service that has the same reason is not taken for one of this package.
func TestOtherDomains(t *testing.T) {
	other, err := status.New(codes.FailedPrecondition, "an expired session").WithDetails(&errdetails.ErrorInfo{Reason: "STALE_TOKEN", Domain: "sessions.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = deposit(t.Context(), connect(t, func(context.Context, string) (string, error) { return "", other.Err() }, nil), "7")
	if status.Code(err) != codes.FailedPrecondition || errors.Is(err, fencing.ErrStaleToken) {
		t.Errorf("the caller gets %v", err)
	}
}

func reason(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == fencinggrpc.Domain {
			return info.GetReason()
		}
	}
	return ""
}

// A handler gets no token for a resource that the call does not name.
func TestTokensAreOfTheirResources(t *testing.T) {
	conn := connect(t, func(ctx context.Context, name string) (string, error) {
		token, err := fencinggrpc.Token(ctx, "accounts/"+name)
		return token.String(), err
	}, newMarks())
	ctx := fencinggrpc.NewContext(t.Context(), bundle{{Resource: "accounts/7", Token: 34}, {Resource: "accounts/8", Token: 35}})
	for name, want := range map[string]string{"7": "34", "8": "35"} {
		if got, err := deposit(ctx, conn, name); err != nil || got != want {
			t.Errorf("token %q of account %s, %v", got, name, err)
		}
	}
	if _, err := deposit(ctx, conn, "9"); status.Code(err) != codes.InvalidArgument || reason(err) != "TOKEN_REQUIRED" {
		t.Errorf("for another account: %v", err)
	}
	if _, err := deposit(t.Context(), conn, "7"); status.Code(err) != codes.InvalidArgument || reason(err) != "TOKEN_REQUIRED" {
		t.Errorf("without a lease: %v", err)
	}
}

// Metadata that no client of this package sends is refused, before anything is claimed.
func TestMalformedMetadata(t *testing.T) {
	many := make([]string, 0, 4*17)
	for i := range 17 {
		many = append(many, "fencing-token", "1", "fencing-resource-bin", fmt.Sprint("r", i))
	}
	for name, pairs := range map[string][]string{
		"a token alone":         {"fencing-token", "34"},
		"a resource alone":      {"fencing-resource-bin", "a"},
		"no number":             {"fencing-token", "34x", "fencing-resource-bin", "a"},
		"zero":                  {"fencing-token", "0", "fencing-resource-bin", "a"},
		"too large":             {"fencing-token", "9007199254740992", "fencing-resource-bin", "a"},
		"a list":                {"fencing-token", "34, 35", "fencing-resource-bin", "a"},
		"no name":               {"fencing-token", "34", "fencing-resource-bin", ""},
		"not UTF-8":             {"fencing-token", "34", "fencing-resource-bin", "\xff"},
		"a long name":           {"fencing-token", "34", "fencing-resource-bin", strings.Repeat("a", fencing.MaxResourceBytes+1)},
		"a resource twice":      {"fencing-token", "34", "fencing-resource-bin", "a", "fencing-token", "35", "fencing-resource-bin", "a"},
		"one proof of two":      {"fencing-token", "34", "fencing-resource-bin", "a", "fencing-token", "35", "fencing-resource-bin", "b", "fencing-proof", "k.x"},
		"a proof alone":         {"fencing-proof", "k.x"},
		"more than a lease has": many,
	} {
		for kind, call := range calls {
			guard, reached := newMarks(), false
			conn := connect(t, func(context.Context, string) (string, error) { reached = true; return "", nil }, guard)
			_, err := call(metadata.AppendToOutgoingContext(t.Context(), pairs...), conn, "7")
			if status.Code(err) != codes.InvalidArgument || reason(err) != "INVALID_CLAIM" || reached || len(guard.highest) > 0 {
				t.Errorf("%s, %s: %v; the handler was reached: %t; marks %v", name, kind, err, reached, guard.highest)
			}
		}
	}
}

// A lease without a valid token sends nothing, and one lease takes the place of another.
func TestWhatIsSent(t *testing.T) {
	conn := connect(t, presented, newMarks())
	for kind, call := range calls {
		if _, err := call(fencinggrpc.NewContext(t.Context(), fencing.Claim{Resource: "a"}), conn, "7"); !errors.Is(err, fencing.ErrMalformedToken) {
			t.Errorf("%s without a token: %v", kind, err)
		}
		forwarded := metadata.AppendToOutgoingContext(t.Context(), "fencing-token", "1", "fencing-resource-bin", "other", "fencing-proof", "k1.secret", "trace", "t")
		if got, err := call(fencinggrpc.NewContext(forwarded, fencing.Claim{Resource: "a", Token: 34, Proof: "k1.mine"}), conn, "7"); err != nil || got != "a=34 ; 34 true " {
			t.Errorf("%s in place of another lease: %q, %v", kind, got, err)
		}
	}
}
