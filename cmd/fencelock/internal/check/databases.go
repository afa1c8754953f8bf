package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cause"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/engine"
	"github.com/fencelock/fencelock/storage/mysqlguard"
	"github.com/fencelock/fencelock/storage/pgguard"
	"github.com/fencelock/fencelock/storage/pgstore"
)

// databases checks where the locks are, if they are not in Redis, and the guard's Postgres or MariaDB.
func (r *Report) databases(ctx context.Context, cfg config.Config, now time.Time) {
	switch e, known := engine.Of(cfg.Store); {
	case known && e.Look != nil:
		r.engine(e.Look(ctx, cfg.Store, answerTime))
	case known:
		s, ok := r.postgres(ctx, "FENCELOCK_STORE", cfg.Store, now)
		if ok && s.VersionNum < 150000 {
			r.Add(Wrong, s.subject, "the store needs PostgreSQL 15 or newer, this is "+s.Version, "use a newer server")
		}
		if ok && s.StoreOwner == "" && !s.MayCreate {
			r.Add(Wrong, s.subject, "there is no schema fencelock, and the role "+s.Role+" may not create one", "GRANT CREATE ON DATABASE to it")
		}
		if ok && len(s.Lacks) > 0 {
			r.Add(Wrong, s.subject, "the role "+s.Role+" may not use all of the schema fencelock, so nothing is granted", "as "+s.StoreOwner+": "+strings.Join(s.Lacks, " TO "+s.Role+"; ")+" TO "+s.Role)
		}
		if ok && cfg.DatabaseURL == cfg.Store {
			r.guard(s)
		}
	}
	if cfg.DatabaseURL != "" && cfg.DatabaseURL != cfg.Store {
		if mysqlguard.IsURL(cfg.DatabaseURL) {
			r.mariadb(ctx, "FENCELOCK_DATABASE_URL", cfg.DatabaseURL)
		} else if s, ok := r.postgres(ctx, "FENCELOCK_DATABASE_URL", cfg.DatabaseURL, now); ok {
			r.guard(s)
		}
	}
}

// pgState is what Postgres reports about the database and the role. The guard's part is read only if
// there is a guard.
type pgState struct {
	subject string // the variable with the URL

	VersionNum            int
	Version, Encoding     string
	Role, Owner           string // Owner is the owner of the guard's schema; "" without a guard
	StoreOwner            string // the owner of the schema fencelock; "" without one
	Standby, Superuser    bool
	MayCreate, MemberOf   bool // MemberOf says that the role is a member of the schema's owner
	MayUse                bool // may call the functions in the schema
	Fsync, FullPageWrites string
	SynchronousCommit     string
	Installed             int64    // the schema's version; 0 without a schema
	Lacks                 []string // missing grants on the schema fencelock, if there is one
}

const stateSQL = `
SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'),
       current_user, coalesce(s.nspowner::regrole::text, ''),
       coalesce((SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'fencelock'), ''), pg_is_in_recovery(),
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       has_database_privilege(current_database(), 'CREATE'),
       coalesce(pg_has_role(s.nspowner, 'MEMBER'), false),
       coalesce(has_schema_privilege(s.oid, 'USAGE')
                AND (SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_proc p WHERE p.pronamespace = s.oid AND p.proname = '_attempt'), false),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')
  FROM (SELECT 1) one LEFT JOIN pg_namespace s ON s.nspname = 'fencing'`

// postgres checks a database, in a read-only transaction.
func (r *Report) postgres(ctx context.Context, subject, url string, now time.Time) (state pgState, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	target, err := pgx.ParseConfig(url)
	if err != nil {
		r.Add(Wrong, subject, "it is not a URL that Postgres's libraries understand (not shown: it may hold a password)", "write postgres://user:password@host:5432/database")
		return state, false
	}
	var cert *x509.Certificate
	if target.TLSConfig != nil {
		target.TLSConfig.VerifyConnection = func(s tls.ConnectionState) error { cert = s.PeerCertificates[0]; return nil }
	}
	state, err = readState(ctx, target)
	if err != nil {
		r.Add(Wrong, subject, "the database "+cause.OfPostgres(err), "start it, or correct the address, user, password or database")
		return state, false
	}
	state.subject = subject
	r.lookedf("Postgres %s", state.Version)
	if !isLocal(target.Host) && target.TLSConfig == nil {
		r.Add(Risky, subject, "the connection is unencrypted (sslmode=disable)", "use sslmode=verify-full")
	}
	if cert != nil {
		r.dates(subject, cert, now, "renew it; SELECT pg_reload_conf() has Postgres read it")
	}
	r.database(state)
	r.pooler(ctx, subject, target)
	return state, true
}

func isLocal(host string) bool {
	ip := net.ParseIP(host)
	return strings.HasPrefix(host, "/") || host == "localhost" || ip != nil && ip.IsLoopback()
}

func readState(ctx context.Context, target *pgx.ConnConfig) (s pgState, err error) {
	conn, err := pgx.ConnectConfig(ctx, target)
	if err != nil {
		return s, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, stateSQL).Scan(&s.VersionNum, &s.Version, &s.Encoding, &s.Role, &s.Owner, &s.StoreOwner, &s.Standby, &s.Superuser,
			&s.MayCreate, &s.MemberOf, &s.MayUse, &s.Fsync, &s.FullPageWrites, &s.SynchronousCommit); err != nil {
			return err
		}
		if s.StoreOwner != "" {
			if s.Lacks, err = pgstore.MissingRights(ctx, tx); err != nil {
				return err
			}
		}
		if !s.MayUse {
			return nil
		}
		return tx.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM fencing.version`).Scan(&s.Installed)
	})
	return s, err
}

// database reports problems of the database and its settings.
func (r *Report) database(s pgState) {
	const oldest = 130000
	if s.VersionNum < oldest {
		r.Add(Wrong, s.subject, "it is PostgreSQL "+s.Version+": 13 or newer is needed", "use a newer server")
	}
	if s.Standby {
		r.Add(Wrong, s.subject, "it is a standby, which takes no writes", "name the primary; with several hosts in the URL add target_session_attrs=read-write")
	}
	if s.Superuser {
		r.Add(Risky, s.subject, "the role "+s.Role+" is a superuser, who bypasses every protection", "give the service its own role")
	}
	const forgets = ": a crash can lose locks and marks, and then a lock has two holders or a stale token is accepted"
	if s.Fsync != "on" || s.FullPageWrites != "on" {
		r.Add(Wrong, s.subject, fmt.Sprintf("fsync is %s and full_page_writes is %s%s", s.Fsync, s.FullPageWrites, forgets), "set both to on")
	}
	if s.SynchronousCommit == "off" {
		r.Add(Risky, s.subject, "synchronous_commit is off"+forgets, "set it to on for this role or database")
	}
}

// guard reports problems of the schema fencing and of the role's rights.
func (r *Report) guard(s pgState) {
	if s.Encoding != "UTF8" {
		r.Add(Wrong, s.subject, "the database is in "+s.Encoding+": the guard needs UTF8", "create a database with ENCODING 'UTF8' TEMPLATE template0")
	}
	wanted, err := pgguard.SchemaVersion()
	const install = "run fencelock guard install as a role that may"
	switch {
	case err != nil:
		r.Add(Wrong, s.subject, "this program's schema cannot be read: "+err.Error(), "install the program again")
	case s.Owner == "" && !s.MayCreate:
		r.Add(Wrong, s.subject, "there is no schema fencing, and the role "+s.Role+" may not create one", install+", or GRANT CREATE ON DATABASE")
	case s.Owner == "":
	case !s.MayUse && !s.MemberOf:
		r.Add(Wrong, s.subject, fmt.Sprintf("the schema fencing belongs to %s, and the role %s may not use it", s.Owner, s.Role), "grant it the rights that docs/reference/guard.md lists")
	case s.Installed < wanted && !s.MemberOf:
		r.Add(Wrong, s.subject, fmt.Sprintf("the schema fencing is of version %d, this program needs %d, and the role %s may not change it", s.Installed, wanted, s.Role), "run fencelock guard install as "+s.Owner)
	}
}

// engine reports what an engine's Look found.
func (r *Report) engine(seen engine.Seen) {
	if seen.Version != "" {
		r.lookedf("%s", seen.Version)
	}
	for _, f := range seen.Findings {
		level := Risky
		if f.Wrong {
			level = Wrong
		}
		r.Add(level, "FENCELOCK_STORE", f.What, f.Do)
	}
}
