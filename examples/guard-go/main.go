// Command guard-go deposits money into a protected account.
//
//	DATABASE_URL=postgres://… go run ./examples/guard-go TOKEN AMOUNT
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/storage/pgguard"
)

const exitStale = 3

func main() {
	err := run(context.Background(), os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, err)
	if errors.Is(err, fencing.ErrStaleToken) {
		os.Exit(exitStale) // another worker has the account now: stop, and acquire the lock again
	}
	os.Exit(1)
}

func run(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return errors.New("usage: guard-go TOKEN AMOUNT")
	}
	token, err := fencing.ParseToken(args[0])
	if err != nil {
		return err
	}
	amount, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	balance, err := deposit(ctx, conn, token, amount)
	if err != nil {
		return err
	}
	fmt.Println("balance is", balance)
	return nil
}

func deposit(ctx context.Context, conn *pgx.Conn, token fencing.Token, amount int64) (balance int64, err error) {
	err = pgguard.Do(ctx, conn, fencing.Claim{Resource: "accounts/1", Token: token}, func(tx pgx.Tx) error { // claims before the first read
		if err := tx.QueryRow(ctx, `SELECT balance FROM accounts WHERE id = 1`).Scan(&balance); err != nil {
			return err
		}
		balance += amount
		_, err := tx.Exec(ctx, `UPDATE accounts SET balance = $1 WHERE id = 1`, balance)
		return err
	})
	return balance, err
}
