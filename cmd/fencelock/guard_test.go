package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

func runGuard(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := rootCommand()
	root.SetArgs(append([]string{"guard"}, args...))
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestGuardCommand(t *testing.T) {
	pg := testenv.Postgres(t)
	path := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(path, []byte(pg.OwnerURL()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), pg.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	installed := func(want bool) {
		t.Helper()
		var got bool
		if err := conn.QueryRow(t.Context(), `SELECT to_regprocedure('fencing.claim(text, bigint)') IS NOT NULL`).Scan(&got); err != nil || got != want {
			t.Errorf("installed: %t, %v; want %t", got, err, want)
		}
	}
	for range 2 {
		if out, err := runGuard(t, "install", "--database-url", pg.OwnerURL()); err != nil {
			t.Fatal(out, err)
		}
		installed(true)
	}
	if _, err := runGuard(t, "uninstall", "--database-url", pg.OwnerURL()); !isUsage(err) {
		t.Errorf("uninstall without --yes gives %v", err)
	}
	installed(true)
	t.Setenv("FENCELOCK_DATABASE_URL_FILE", path)
	for range 2 {
		if out, err := runGuard(t, "uninstall", "--yes"); err != nil {
			t.Fatal(out, err)
		}
		installed(false)
	}
	script, err := runGuard(t, "sql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), script); err != nil {
		t.Errorf("the printed SQL does not run: %v", err)
	}
	installed(true)
}

func isUsage(err error) bool {
	var usage cli.UsageError
	return errors.As(err, &usage)
}

func TestGuardCommandWantsADatabase(t *testing.T) {
	t.Setenv("FENCELOCK_DATABASE_URL", "")
	t.Setenv("FENCELOCK_DATABASE_URL_FILE", "")
	if _, err := runGuard(t, "install"); !isUsage(err) || !strings.Contains(err.Error(), "FENCELOCK_DATABASE_URL") {
		t.Errorf("install without a database gives %v", err)
	}
	const secret = "hunter2hunter2"
	if _, err := runGuard(t, "install", "--database-url", "postgres://u:"+secret+"@h:port/d"); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("install with a malformed URL gives %v", err)
	}
}

func TestGuardProofKeysCommand(t *testing.T) {
	pg := testenv.Postgres(t)
	path := filepath.Join(t.TempDir(), "keys")
	writeFile(t, path, "k1 "+strings.Repeat("ab", 32)+"\nk2 "+strings.Repeat("cd", 64)+"\n")
	if _, err := runGuard(t, "install", "--database-url", pg.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FENCELOCK_PROOF_KEY_FILE", "")
	if _, err := runGuard(t, "proof-keys", "--database-url", pg.OwnerURL()); !isUsage(err) || !strings.Contains(err.Error(), "FENCELOCK_PROOF_KEY_FILE") {
		t.Errorf("without a file: %v", err)
	}
	if out, err := runGuard(t, "proof-keys", "--database-url", pg.OwnerURL(), "--file", path); err != nil {
		t.Fatal(out, err)
	}
	conn, err := pgx.Connect(t.Context(), pg.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var ids string
	if err := conn.QueryRow(t.Context(), `SELECT string_agg(id, ' ' ORDER BY id) FROM fencing.proof_keys`).Scan(&ids); err != nil || ids != "k1 k2" {
		t.Errorf("keys %q, %v", ids, err)
	}
	writeFile(t, path, "k1 hunter2")
	if out, err := runGuard(t, "proof-keys", "--database-url", pg.OwnerURL(), "--file", path); !isUsage(err) || strings.Contains(out+err.Error(), "hunter2") {
		t.Errorf("a bad file: %v", err)
	}
}

func TestGuardStatusCommand(t *testing.T) {
	pg := testenv.Postgres(t)
	t.Setenv("FENCELOCK_DATABASE_URL", pg.OwnerURL())
	if _, err := runGuard(t, "status"); err == nil || !strings.Contains(err.Error(), "guard install") {
		t.Errorf("without a guard: %v", err)
	}
	if _, err := runGuard(t, "install"); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), pg.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), `CREATE TABLE accounts (id int); SELECT fencing.protect('accounts', $$'accounts/' || id$$);
		SELECT fencing.claim('accounts/1', 34); SELECT fencing.try_claim('accounts/1', 33)`); err != nil {
		t.Fatal(err)
	}
	out, err := runGuard(t, "status")
	for _, line := range []string{"accounts  strict  1        0         -\n", "1 resources, highest mark 34, 1 stale claims and writes refused in all\n"} {
		if err != nil || !strings.Contains(out, line) {
			t.Errorf("no line %q, %v:\n%s", line, err, out)
		}
	}
	if _, err := conn.Exec(t.Context(), `ALTER TABLE accounts DISABLE TRIGGER "0_fencing_guard"`); err != nil {
		t.Fatal(err)
	}
	out, err = runGuard(t, "status", "-o", "json")
	if cli.ExitCode(err) != cli.ExitFailed || !strings.Contains(out, `"problem": "public.accounts has no working trigger 0_fencing_guard"`) {
		t.Errorf("a disabled trigger gives %v:\n%s", err, out)
	}
	if _, err := runGuard(t, "status", "-o", "xml"); !isUsage(err) {
		t.Errorf("another output gives %v", err)
	}
}
