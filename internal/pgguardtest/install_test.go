package pgguardtest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

func detail(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Detail
	}
	return ""
}

func hint(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Hint
	}
	return ""
}

// objects describes everything in the schema fencing, to the letter.
func objects(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	var all string
	err := conn.QueryRow(t.Context(), `
		SELECT string_agg(what, E'\n' ORDER BY what) FROM (
			SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') || obj_description(oid) AS what FROM pg_proc WHERE pronamespace = 'fencing'::regnamespace
			UNION ALL SELECT relname || ' ' || relkind::text || coalesce(obj_description(oid), '') FROM pg_class WHERE relnamespace = 'fencing'::regnamespace
			UNION ALL SELECT attrelid::regclass || '.' || attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid WHERE c.relnamespace = 'fencing'::regnamespace AND attnum > 0 AND NOT attisdropped
			UNION ALL SELECT 'version ' || max(version) FROM fencing.version
		) AS o`).Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(all, conn.Config().User, "the owner")
}

// differs shows where two descriptions part, "" if they do not.
func differs(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d is %q, want %q", i+1, g[i], w[i])
		}
	}
	if len(g) != len(w) {
		return fmt.Sprintf("%d lines, want %d", len(g), len(w))
	}
	return ""
}

// TestPlainSQLIsTheSame: the printed script makes what Install makes, can be
// run again over either, and Install finds nothing to do after it.
func TestPlainSQLIsTheSame(t *testing.T) {
	t.Parallel()
	script, err := pgguard.SQL()
	if err != nil {
		t.Fatal(err)
	}
	installed, scripted := testenv.Postgres(t), testenv.Postgres(t)
	if err := pgguard.Install(t.Context(), installed.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	a, b := connectTo(t, installed.OwnerURL()), connectTo(t, scripted.OwnerURL())
	want := objects(t, a)
	for range 2 {
		mustExec(t, b, script)
		mustExec(t, a, script)
		if err := pgguard.Install(t.Context(), scripted.OwnerURL()); err != nil {
			t.Fatal(err)
		}
		if diff := differs(objects(t, b), want); diff != "" {
			t.Fatalf("the script makes something else than Install: %s", diff)
		}
		if diff := differs(objects(t, a), want); diff != "" {
			t.Fatalf("the script changes what Install made: %s", diff)
		}
	}
}

// installed is a database with the guard in it.
func installed(t *testing.T) *testenv.PG {
	t.Helper()
	pg := testenv.Postgres(t)
	if err := pgguard.Install(t.Context(), pg.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	return pg
}

// newRole is a role with the password pw, until the test ends.
func newRole(t *testing.T, super *pgx.Conn) (name string) {
	t.Helper()
	name = "role_" + strings.ToLower(rand.Text()[:10])
	mustExec(t, super, `CREATE ROLE `+name+` LOGIN PASSWORD 'pw'`)
	t.Cleanup(func() {
		if conn, err := pgx.ConnectConfig(context.Background(), super.Config()); err == nil {
			_, _ = conn.Exec(context.Background(), `DROP OWNED BY `+name+` CASCADE; DROP ROLE `+name)
			_ = conn.Close(context.Background())
		}
	})
	return name
}

func connectTo(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// TestUpgrade brings a schema of each earlier version up to this one, with
// its marks in it.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	pg := installed(t)
	conn := connectTo(t, pg.OwnerURL())
	want := objects(t, conn)
	mustExec(t, conn, `SELECT fencing.claim('r', 7)`)
	for _, undo := range []string{
		`DELETE FROM fencing.version; DROP TABLE fencing.proof_keys, fencing.proven; ALTER TABLE fencing.protected DROP COLUMN proof;
		 DROP FUNCTION fencing.claim(text, bigint, text), fencing.try_claim(text, bigint, text), fencing.protect(regclass, text, boolean, text)`,
		`DELETE FROM fencing.version; DROP FUNCTION fencing.protect(regclass, text, text); DROP TABLE fencing.protected CASCADE`,
		`DELETE FROM fencing.version; DROP TABLE fencing.records, fencing.attempts`,
	} {
		mustExec(t, conn, undo)
		if err := pgguard.Install(t.Context(), pg.OwnerURL()); err != nil {
			t.Fatal(err)
		}
		if diff := differs(objects(t, conn), want); diff != "" {
			t.Errorf("upgraded, the schema is another: %s", diff)
		}
		if _, err := conn.Exec(t.Context(), `SELECT fencing.claim('r', 6)`); sqlState(err) != pgguard.SQLStateStale {
			t.Errorf("a mark was lost by an upgrade: %v", err)
		}
	}
}

// TestUninstall leaves the tables, without their protection.
func TestUninstall(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	pool := openPool(t, pg.URL())
	conn := connectTo(t, pg.OwnerURL())
	mustExec(t, conn, `CREATE SCHEMA app`)
	mustExec(t, conn, `CREATE TABLE app.accounts (id text)`)
	before := objectsOutside(t, pool)
	if err := pgguard.Install(t.Context(), pg.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, `SELECT fencing.protect('app.accounts', 'id')`)
	if _, err := conn.Exec(t.Context(), `INSERT INTO app.accounts VALUES ('x')`); sqlState(err) != pgguard.SQLStateMissing {
		t.Errorf("a protected table takes a row: %v", err)
	}
	for range 2 {
		if err := pgguard.Uninstall(t.Context(), pg.OwnerURL()); err != nil {
			t.Fatal(err)
		}
	}
	mustExec(t, conn, `INSERT INTO app.accounts VALUES ('x')`)
	if after := objectsOutside(t, pool); after != before {
		t.Errorf("objects outside the schema fencing were\n%s\nand are\n%s", before, after)
	}
	var left int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname = 'fencing'`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d schemas fencing are left, %v", left, err)
	}
}

// TestEverythingIsCommented holds every function, table and view to a comment.
func TestEverythingIsCommented(t *testing.T) {
	t.Parallel()
	pg := installed(t)
	var silent string
	err := connectTo(t, pg.OwnerURL()).QueryRow(t.Context(), `
		SELECT coalesce(string_agg(name, ' '), '') FROM (
			SELECT oid::regprocedure::text AS name FROM pg_proc WHERE pronamespace = 'fencing'::regnamespace AND obj_description(oid) IS NULL
			UNION ALL SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'fencing'::regnamespace AND relkind IN ('r', 'v')
			      AND obj_description(oid) IS NULL
		) AS o`).Scan(&silent)
	if err != nil || silent != "" {
		t.Errorf("without a comment: %s (%v)", silent, err)
	}
}

// TestServesUnderARoleThatOwnsNothing: the schema was installed by an owner,
// the service runs under a role with the rights that docs/reference/guard.md lists.
func TestServesUnderARoleThatOwnsNothing(t *testing.T) {
	t.Parallel()
	pg := installed(t)
	super := connectTo(t, pg.URL())
	name := newRole(t, super)
	for _, grant := range serviceGrants(t) {
		mustExec(t, super, strings.ReplaceAll(grant, " TO service", " TO "+name))
	}
	g := openGuard(t, withUser(t, pg.URL(), name, "pw"), pgguard.Options{})
	if _, err := g.Write(t.Context(), "r", 1, []byte(`1`)); err != nil {
		t.Error(err)
	}
	if record, err := g.Read(t.Context(), "r"); err != nil || record.Version != 1 {
		t.Errorf("read gives %+v, %v", record, err)
	}
	if _, err := g.History(t.Context(), "r", 1); err != nil {
		t.Error(err)
	}
}

// serviceGrants are the statements that docs/reference/guard.md lists for the service.
func serviceGrants(t *testing.T) (grants []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/reference/guard.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if grant, _, found := strings.Cut(line, " TO service;"); found {
			grants = append(grants, grant+" TO service")
		}
	}
	if len(grants) != 3 {
		t.Fatalf("docs/reference/guard.md has %d grants for the service, want 3: %q", len(grants), grants)
	}
	return grants
}

// TestTriggerFunctionsAreForNobody: with the rights of a service nobody can hang
// a trigger function, which runs as the schema's owner, on a table of its own.
func TestTriggerFunctionsAreForNobody(t *testing.T) {
	t.Parallel()
	pg := installed(t)
	owner, super := connectTo(t, pg.OwnerURL()), connectTo(t, pg.URL())
	mustExec(t, owner, `CREATE SCHEMA app`)
	mustExec(t, owner, `CREATE TABLE app.accounts (id int)`)
	mustExec(t, owner, `CREATE TABLE public.secret AS SELECT 'the owner''s alone' AS word`)
	name := newRole(t, super)
	mustExec(t, owner, `ALTER DEFAULT PRIVILEGES IN SCHEMA fencing GRANT EXECUTE ON FUNCTIONS TO `+name)
	const protect = `SELECT fencing.protect('app.accounts', $$'accounts/' || id$$)`
	mustExec(t, owner, protect)
	mustExec(t, owner, `GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencing TO `+name)
	mustExec(t, owner, protect)
	for _, grant := range serviceGrants(t) {
		mustExec(t, super, strings.ReplaceAll(grant, " TO service", " TO "+name))
	}
	mustExec(t, super, `CREATE SCHEMA mal AUTHORIZATION `+name)
	conn := connectTo(t, withUser(t, pg.URL(), name, "pw"))
	mustExec(t, conn, `CREATE TYPE mal.e AS ENUM ('x')`)
	mustExec(t, conn, `CREATE FUNCTION mal.read(mal.e) RETURNS text LANGUAGE sql AS 'SELECT word FROM public.secret'`)
	mustExec(t, conn, `CREATE FUNCTION mal.one(mal.e) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'`)
	mustExec(t, conn, `CREATE CAST (mal.e AS text) WITH FUNCTION mal.read(mal.e)`)
	mustExec(t, conn, `CREATE CAST (mal.e AS bigint) WITH FUNCTION mal.one(mal.e) AS IMPLICIT`)
	mustExec(t, conn, `CREATE TABLE mal.t (id mal.e)`)
	rows, err := conn.Query(t.Context(), `SELECT proname FROM pg_proc WHERE pronamespace = 'fencing'::regnamespace AND prorettype = 'trigger'::regtype AND prosecdef`)
	if err != nil {
		t.Fatal(err)
	}
	functions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(functions) != 2 {
		t.Fatalf("trigger functions %v, %v", functions, err)
	}
	for _, function := range functions {
		if _, err := conn.Exec(t.Context(), `CREATE TRIGGER t AFTER INSERT ON mal.t FOR EACH ROW EXECUTE FUNCTION fencing.`+function+`()`); sqlState(err) != "42501" {
			_, err = conn.Exec(t.Context(), `INSERT INTO mal.t VALUES ('x')`)
			t.Errorf("%s is on a table of somebody else's: %v", function, err)
		}
	}
}

func withUser(t *testing.T, raw, name, password string) string {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, password)
	return u.String()
}

// newcomer is a role of the test's own, with every right in the schema public.
func newcomer(t *testing.T, pg *testenv.PG) (name string, conn *pgx.Conn) {
	t.Helper()
	super := connectTo(t, pg.URL())
	name = newRole(t, super)
	mustExec(t, super, `GRANT ALL ON SCHEMA public TO `+name)
	return name, connectTo(t, withUser(t, pg.URL(), name, "pw"))
}

// TestOperatorsOfOthers: somebody has made operators that fit better than
// PostgreSQL's, in a schema that is in everybody's search_path.
func TestOperatorsOfOthers(t *testing.T) {
	t.Parallel()
	script, err := pgguard.SQL()
	if err != nil {
		t.Fatal(err)
	}
	for name, install := range map[string]func(*testing.T, *testenv.PG) error{
		"install": func(t *testing.T, pg *testenv.PG) error {
			t.Helper()
			return pgguard.Install(t.Context(), pg.OwnerURL())
		},
		"script": func(t *testing.T, pg *testenv.PG) error {
			t.Helper()
			_, err := connectTo(t, pg.OwnerURL()).Exec(t.Context(), script)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			pg := testenv.Postgres(t)
			_, mallory := newcomer(t, pg)
			for _, types := range [][2]string{{"text", "bigint"}, {"text", "int"}, {"oid", "regclass"}} {
				mustExec(t, mallory, fmt.Sprintf(`CREATE FUNCTION public.joins(%s, %s) RETURNS text LANGUAGE sql AS $$ SELECT 'hijacked'::text $$`, types[0], types[1]))
				mustExec(t, mallory, fmt.Sprintf(`CREATE OPERATOR public.|| (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.joins)`, types[0], types[1]))
			}
			mustExec(t, mallory, `CREATE FUNCTION public.same(oid, regclass) RETURNS boolean LANGUAGE sql AS 'SELECT false'`)
			mustExec(t, mallory, `CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = public.same)`)
			if err := install(t, pg); err != nil {
				t.Fatal(err)
			}
			owner := connectTo(t, pg.OwnerURL())
			var foreign string
			err := owner.QueryRow(t.Context(), `SELECT coalesce(string_agg(pg_get_viewdef(oid), ' '), '') FROM pg_class
				WHERE relnamespace = 'fencing'::regnamespace AND relkind = 'v' AND pg_get_viewdef(oid) LIKE '%public.%'`).Scan(&foreign)
			if err != nil || foreign != "" {
				t.Errorf("a view uses an operator of somebody's: %s, %v", foreign, err)
			}
			mustExec(t, owner, `CREATE SCHEMA app`)
			mustExec(t, owner, `CREATE TABLE app.accounts (id int)`)
			if _, err := owner.Exec(t.Context(), `SELECT fencing.protect('app.accounts', $$'accounts/' || id$$)`); sqlState(err) != "42501" {
				t.Errorf("protecting with somebody else's operator: %v", err)
			}
			mustExec(t, owner, `SELECT fencing.protect('app.accounts', $$'accounts/' OPERATOR(pg_catalog.||) id$$)`)
			var problem string
			if err := owner.QueryRow(t.Context(), `SELECT coalesce(problem, '') FROM fencing.status WHERE kind = 'table'`).Scan(&problem); err != nil || problem != "" {
				t.Errorf("the status says %q, %v", problem, err)
			}
		})
	}
}

// TestForeignPartsOfExpressions: what others own is refused, what is the owners' is not.
func TestForeignPartsOfExpressions(t *testing.T) {
	t.Parallel()
	pg := installed(t)
	name, mallory := newcomer(t, pg)
	owner, super := connectTo(t, pg.OwnerURL()), connectTo(t, pg.URL())
	for prefix, conn := range map[string]*pgx.Conn{"theirs": mallory, "ours": owner, "super": super} {
		if conn == owner {
			mustExec(t, super, `GRANT ALL ON SCHEMA public TO `+owner.Config().User)
		}
		for _, sql := range []string{
			`CREATE FUNCTION public.%s_label(int) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'no. ' || $1 $$`,
			`CREATE DOMAIN public.%s_text AS text`,
			`CREATE TYPE public.%s_kind AS ENUM ('a')`,
		} {
			mustExec(t, conn, fmt.Sprintf(sql, prefix))
		}
		mustExec(t, super, fmt.Sprintf(`GRANT USAGE ON TYPE public.%[1]s_kind, public.%[1]s_text TO PUBLIC`, prefix))
	}
	mustExec(t, owner, `CREATE TABLE public.things (id int, ours ours_kind, theirs theirs_kind, super super_kind)`)
	named := regexp.MustCompile(name + `: .*theirs_`)
	for _, expression := range []string{`%s_label(id)`, `'x'::text::%s_text::text`, `'x/' || %s`} {
		for prefix, want := range map[string]string{"theirs": "42501", "ours": "", "super": ""} {
			_, err := owner.Exec(t.Context(), `SELECT fencing.protect('public.things', $1)`, fmt.Sprintf(expression, prefix))
			if sqlState(err) != want || want != "" && !named.MatchString(err.Error()) {
				t.Errorf(expression+": %v, want %q", prefix, err, want)
			}
		}
	}
}

// TestASchemaOfSomebodyElse is not installed in, whatever it has in it.
func TestASchemaOfSomebodyElse(t *testing.T) {
	t.Parallel()
	script, err := pgguard.SQL()
	if err != nil {
		t.Fatal(err)
	}
	pg := testenv.Postgres(t)
	super := connectTo(t, pg.URL())
	name, mallory := newcomer(t, pg)
	mustExec(t, super, fmt.Sprintf(`GRANT CREATE ON DATABASE %s TO %s`, super.Config().Database, name))
	install := map[string]func(url string) error{
		"install": func(url string) error { return pgguard.Install(t.Context(), url) },
		"script": func(url string) error {
			_, err := connectTo(t, url).Exec(t.Context(), script)
			return err
		},
	}
	refused := func(what string) {
		t.Helper()
		for how, install := range install {
			for _, url := range []string{pg.URL(), pg.OwnerURL()} {
				if err := install(url); err == nil || !strings.Contains(err.Error(), "belongs to "+name) {
					t.Errorf("%s, %s: %v", what, how, err)
				}
			}
		}
	}
	mustExec(t, mallory, `CREATE SCHEMA fencing; GRANT ALL ON SCHEMA fencing TO PUBLIC`)
	refused("an empty schema")
	if err := pgguard.Install(t.Context(), withUser(t, pg.URL(), name, "pw")); err != nil {
		t.Errorf("the schema's owner: %v", err)
	}
	refused("one with the guard in it")
	mustExec(t, super, `GRANT `+name+` TO `+connectTo(t, pg.OwnerURL()).Config().User)
	for how, install := range install {
		if err := install(pg.OwnerURL()); how == "install" && err != nil || err != nil && strings.Contains(err.Error(), "belongs to") {
			t.Errorf("a member of the owner's role, %s: %v", how, err)
		}
	}
}
