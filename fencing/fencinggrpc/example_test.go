package fencinggrpc_test

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/fencing/fencinggrpc"
)

// bank writes each balance in the same step in which it compares the token.
type bank struct{ storage *marks }

func (b *bank) Deposit(ctx context.Context, name string) (string, error) {
	resource := "accounts/" + name
	token, err := fencinggrpc.Token(ctx, resource)
	if err != nil {
		return "", err
	}
	balance, err := b.storage.add(resource, token, 10)
	return fmt.Sprint("balance ", balance), err // the interceptor makes a status of a stale token
}

// Client A's lease expires while A is frozen, and B gets the lock and deposits. The service refuses A's late call.
func Example() {
	storage := newMarks()
	conn, stop := serve(&bank{storage}, storage)
	defer stop()

	// In place of leases of package client.
	leaseOfA := fencing.Claim{Resource: "accounts/7", Token: 33}
	leaseOfB := fencing.Claim{Resource: "accounts/7", Token: 34}

	ctx := context.Background()
	fmt.Println(deposit(fencinggrpc.NewContext(ctx, leaseOfA), conn, "7"))
	fmt.Println(deposit(fencinggrpc.NewContext(ctx, leaseOfB), conn, "7"))
	_, err := deposit(fencinggrpc.NewContext(ctx, leaseOfA), conn, "7")
	fmt.Println(status.Code(err), errors.Is(err, fencing.ErrLeaseLost))
	_, err = deposit(ctx, conn, "7")
	fmt.Println(status.Code(err))

	// Output:
	// balance 10 <nil>
	// balance 20 <nil>
	// FailedPrecondition true
	// InvalidArgument
}
