// Command web-go serves POST /accounts/{account}/deposits/{deposit} {"amount": 5} through database/sql. A
// middleware acquires the account's lock and passes the lease to the handler.
//
//	DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 PORT=3000 go run ./examples/web-go
//
// With DATABASE_URL='user:password@tcp(host:3306)/shop' it uses MariaDB.
package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/storage/mysqlguard"
	"github.com/fencelock/fencelock/storage/pgguard"
)

const (
	queue  = 5 * time.Second        // how long a request waits for its account
	rules  = 100 * time.Millisecond // the time that the business rules take
	header = 5 * time.Second
)

// database holds the differences between Postgres and MariaDB.
type database struct {
	driver                 string
	do                     func(context.Context, *sql.DB, fencing.Lease, func(*sql.Tx) error) error
	balance, note, deposit string
}

var (
	postgres = database{"pgx", pgguard.DoSQL, `SELECT balance FROM accounts WHERE id = $1`,
		`INSERT INTO deposits VALUES ($1, $2, $3)`, `UPDATE accounts SET balance = $1 WHERE id = $2`}
	mariaDB = database{"mysql", mysqlguard.Do, `SELECT balance FROM accounts WHERE id = ?`,
		`INSERT INTO deposits VALUES (?, ?, ?)`, `UPDATE accounts SET balance = ? WHERE id = ?`}
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	locks, err := client.New(strings.Split(os.Getenv("FENCELOCK_URL"), ",")) // one server, or several with commas
	if err != nil {
		return err
	}
	kind, url := postgres, os.Getenv("DATABASE_URL")
	if !strings.HasPrefix(url, "postgres") {
		kind = mariaDB
	}
	db, err := sql.Open(kind.driver, url)
	if err != nil {
		return err
	}
	ttl, err := time.ParseDuration(cmp.Or(os.Getenv("LEASE_TTL"), "30") + "s")
	if err != nil {
		return err
	}
	listener, err := listen()
	if err != nil {
		return err
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	account := func(r *http.Request) string { return "accounts/" + r.PathValue("account") }
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{account}/deposits/{deposit}", locked(locks, account, kind.serve(db), client.TTL(ttl), client.Wait(queue)))
	return (&http.Server{Handler: mux, ReadHeaderTimeout: header}).Serve(listener)
}

// listen uses the socket that systemd passes (systemd.socket), or opens PORT.
func listen() (net.Listener, error) {
	if os.Getenv("LISTEN_FDS") == "1" {
		return net.FileListener(os.NewFile(3, "socket")) //nolint:mnd // systemd passes the first socket as descriptor 3
	}
	return net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
}

// handler returns an error before it has written a response.
type handler func(http.ResponseWriter, *http.Request) error

type leaseKey struct{}

// leaseOf is the lease under which locked serves a request.
func leaseOf(ctx context.Context) *client.Lease {
	lease, _ := ctx.Value(leaseKey{}).(*client.Lease)
	return lease
}

// locked serves each request under the lock of its resource. The request's context ends before the lease.
func locked(locks *client.Client, resource func(*http.Request) string, next handler, opts ...client.DoOption) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := locks.Do(r.Context(), resource(r), func(ctx context.Context, lease *client.Lease) error {
			return next(w, r.WithContext(context.WithValue(ctx, leaseKey{}, lease)))
		}, opts...)
		switch {
		case err == nil:
		case errors.Is(err, client.ErrLeaseLost): // or the token was stale: another process had the account in the meantime
			http.Error(w, err.Error(), http.StatusConflict)
		case errors.Is(err, client.ErrHeld), errors.Is(err, client.ErrUnavailable):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}

func (d database) serve(db *sql.DB) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		var request struct {
			Amount int64 `json:"amount"`
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			return err
		}
		ctx, account, balance := r.Context(), r.PathValue("account"), int64(0)
		err := d.do(ctx, db, leaseOf(ctx), func(tx *sql.Tx) error { // do claims before the function reads
			if err := tx.QueryRowContext(ctx, d.balance, account).Scan(&balance); err != nil {
				return err
			}
			time.Sleep(rules)
			balance += request.Amount
			if _, err := tx.ExecContext(ctx, d.note, r.PathValue("deposit"), account, request.Amount); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, d.deposit, balance, account)
			return err
		})
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(map[string]int64{"balance": balance})
	}
}
