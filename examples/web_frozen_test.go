package examples_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// A process that is frozen in its transaction has claimed, and so holds a row of the guard. Others make deposits into
// the account soon after its lease has ended, and not only when it continues.
func TestFrozenInItsTransaction(t *testing.T) {
	testenv.Long(t, "an application whose frozen process keeps others from an account although the guard's own tests pass")
	t.Parallel()
	testenv.NeedsServer(t)
	locks := serve(t)
	for _, name := range []string{"Go", "Go on MariaDB"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app := webApps[name]
			db, url := app.database(t)
			app.database = func(*testing.T) (*sql.DB, string) { return db, url }
			frozen, other := startWeb(t, app, locks), startWeb(t, app, locks)

			// Its deposit waits behind one of the same name, which then is not made.
			blocker, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := blocker.ExecContext(t.Context(), `INSERT INTO deposits VALUES ('blocked', 1, 1)`); err != nil {
				t.Fatal(err)
			}
			ctx, giveUp := context.WithCancel(t.Context())
			given := make(chan struct{})
			go func() {
				defer close(given)
				status, err := frozen.depositOnce(ctx, "blocked")
				t.Logf("the blocked deposit: status %d, %v", status, err)
			}()
			defer func() {
				giveUp()
				<-given
			}()
			waiting := `SELECT count(*) FROM pg_locks WHERE NOT granted`
			if strings.Contains(name, "MariaDB") {
				waiting = `SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'INSERT INTO deposits%'`
			}
			testenv.Eventually(t, 30*time.Second, func() error {
				var sessions int
				if err := db.QueryRowContext(t.Context(), waiting).Scan(&sessions); err != nil || sessions == 0 {
					return fmt.Errorf("%d sessions wait: %w", sessions, err)
				}
				return nil
			})
			_ = syscall.Kill(-frozen.process.Pid, syscall.SIGSTOP)
			if err := blocker.Rollback(); err != nil {
				t.Fatal(err)
			}
			tries := 0
			testenv.Eventually(t, 10*webTTL, func() error {
				tries++
				status, err := other.depositOnce(t.Context(), fmt.Sprint("after-", tries))
				if err != nil || status != http.StatusOK {
					return fmt.Errorf("status %d: %w", status, err)
				}
				return nil
			})
		})
	}
}

// depositOnce makes a deposit into account 1, and returns the answer's status.
func (w *web) depositOnce(ctx context.Context, id string) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*webTTL)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/accounts/1/deposits/"+id, strings.NewReader(`{"amount": 1}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
