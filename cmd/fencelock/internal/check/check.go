// Package check looks at a configuration and at what it points to, before a server is
// started with it or while servers run. It only reads: it changes nothing anywhere.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

// Level is how bad a finding is.
type Level string

// The levels. Wrong: a server does not start with it, does not do its work, or loses what
// it promises. Risky: it works, until something happens that the text names.
const (
	Wrong Level = "wrong"
	Risky Level = "risky"
)

// Finding is one thing that should be changed. Its texts hold no secret.
type Finding struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"` // a variable, a node as /readyz names it, Postgres, or a file
	Text    string `json:"text"`    // what is so, and what follows from it
	Do      string `json:"do"`      // what to do about it
}

// Report is what was looked at, and found.
type Report struct {
	Looked   []string  `json:"looked_at"`
	Findings []Finding `json:"findings"` // the wrong ones first
}

// Count says how many findings have a level.
func (r *Report) Count(level Level) (n int) {
	for _, f := range r.Findings {
		if f.Level == level {
			n++
		}
	}
	return n
}

// Add adds a finding.
func (r *Report) Add(level Level, subject, text, do string) {
	r.Findings = append(r.Findings, Finding{Level: level, Subject: subject, Text: text, Do: do})
}

// lookedf notes what was looked at, once.
func (r *Report) lookedf(format string, values ...any) {
	if what := fmt.Sprintf(format, values...); !slices.Contains(r.Looked, what) {
		r.Looked = append(r.Looked, what)
	}
}

// Sort puts what is wrong first, the findings of one subject together, and keeps the order
// otherwise.
func (r *Report) Sort() {
	first := make(map[string]int)
	for i, f := range r.Findings {
		if _, known := first[f.Subject]; !known {
			first[f.Subject] = i
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		levels := []Level{Wrong, Risky}
		return cmp.Or(slices.Index(levels, a.Level)-slices.Index(levels, b.Level), first[a.Subject]-first[b.Subject])
	})
}

// answerTime bounds how long a node or Postgres may take.
const answerTime = 5 * time.Second

// Run looks at what a valid configuration says and points to, and adds to the report.
// now is for the dates of certificates. Ending ctx leaves the rest unlooked at.
func (r *Report) Run(ctx context.Context, cfg config.Config, now time.Time) {
	r.settings(cfg)
	r.ports(ctx, cfg)
	r.files(cfg)
	r.certificates(cfg, now)
	r.redis(ctx, cfg, now)
	r.databases(ctx, cfg, now)
}

// ports tries to listen as a server would.
func (r *Report) ports(ctx context.Context, cfg config.Config) {
	for _, port := range [][2]string{{"FENCELOCK_LISTEN", cfg.Listen}, {"FENCELOCK_ADMIN_LISTEN", cfg.AdminListen}} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", port[1])
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			r.Add(Risky, port[0], port[1]+" is in use, by a running server or by another program: a server that you start on it exits at once",
				"nothing, if this configuration's server is running; otherwise stop that program, or choose another port")
		case err != nil:
			r.Add(Wrong, port[0], "nothing can listen on "+port[1]+": "+err.Error(), "name an address of this machine, and a port that this user may use")
		default:
			_ = l.Close()
		}
	}
}

// settings are what the variables alone say.
func (r *Report) settings(cfg config.Config) {
	exposed := !config.OnLoopback(cfg.Listen)
	if exposed && cfg.AccessFile == "" {
		r.Add(Risky, "FENCELOCK_INSECURE", "every client that reaches "+cfg.Listen+" may lock, break and write",
			"name the callers in FENCELOCK_ACCESS_FILE (docs/how-to/access.md), or make sure that only trusted machines reach the port")
	}
	if exposed && cfg.AccessFile != "" && cfg.TLSCertFile == "" {
		r.Add(Risky, "FENCELOCK_LISTEN", "bearer tokens travel unencrypted to "+cfg.Listen,
			"set FENCELOCK_TLS_CERT_FILE and FENCELOCK_TLS_KEY_FILE, unless something in front of this server ends TLS")
	}
	if cfg.Insecure && cfg.AccessFile != "" && !config.OnLoopback(cfg.AdminListen) {
		r.Add(Risky, "FENCELOCK_INSECURE", "metrics and profiles on "+cfg.AdminListen+" ask no caller for a credential",
			"unset it: the access file then applies to FENCELOCK_ADMIN_LISTEN, too")
	}
	if len(cfg.RedisSets) == 0 && cfg.Store == "" {
		r.Add(Risky, "FENCELOCK_REDIS_ADDRS", "it is not set, so the locks are in one file, "+cfg.Data+": while this server is down nothing is granted",
			"name three or five Redis nodes if that is not good enough (docs/how-to/five-redis.md)")
	}
	if len(cfg.RedisSets) > 0 && cfg.DatabaseURL == "" && cfg.Data != "" {
		r.Add(Risky, "FENCELOCK_DATA", "the guarded records are in a file of this server: they do not guard writes through other servers",
			"set FENCELOCK_DATABASE_URL to share them")
	}
	for i, set := range cfg.RedisSets {
		if len(set) == 1 {
			r.Add(Risky, "FENCELOCK_REDIS_ADDRS", fmt.Sprintf("set %d has one node: while it is down nothing is granted", i+1), "name three or five")
		}
	}
}
