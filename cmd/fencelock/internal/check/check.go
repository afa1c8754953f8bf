// Package check checks a configuration and everything it refers to, before a server starts or while
// servers run. It only reads, and changes nothing.
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

// Level is how serious a finding is.
type Level string

// The levels. Wrong: with it a server does not start, does not do its work, or breaks its promises.
// Risky: the server works until the event that the text describes.
const (
	Wrong Level = "wrong"
	Risky Level = "risky"
)

// Finding is one problem that should be fixed. Its texts contain no secret.
type Finding struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"` // a variable, a node as named in /readyz, Postgres, or a file
	Text    string `json:"text"`    // the fact, and its consequence
	Do      string `json:"do"`      // the remedy
}

// Report lists everything that was checked, and the findings.
type Report struct {
	Looked   []string  `json:"looked_at"`
	Findings []Finding `json:"findings"` // the wrong ones first
}

// Count returns the number of findings with a level.
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

// lookedf adds a check to the list, once.
func (r *Report) lookedf(format string, values ...any) {
	if what := fmt.Sprintf(format, values...); !slices.Contains(r.Looked, what) {
		r.Looked = append(r.Looked, what)
	}
}

// Sort puts the wrong findings first, and keeps the findings of one subject together. Otherwise the order
// stays.
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

// answerTime bounds how long a node or Postgres may take to respond.
const answerTime = 5 * time.Second

// Run checks a valid configuration and everything to which it refers, and adds the findings to the
// report. now is compared with the dates of certificates. If ctx ends, the rest is not checked.
func (r *Report) Run(ctx context.Context, cfg config.Config, now time.Time) {
	r.settings(cfg)
	r.ports(ctx, cfg)
	r.files(cfg)
	r.certificates(cfg, now)
	r.redis(ctx, cfg, now)
	r.databases(ctx, cfg, now)
}

// ports tries to listen on the addresses as a server would.
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

// settings checks the variables alone, without any connection.
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
