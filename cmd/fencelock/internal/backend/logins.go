package backend

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/engine"
	"github.com/fencelock/fencelock/storage/mysqlguard"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// login is the user and password for new connections to one place.
type login struct{ current atomic.Pointer[url.Userinfo] }

// credentials is called by the stores for each connection. It returns "" for what the URL does not
// contain.
func (l *login) credentials() (user, password string) {
	info := l.current.Load()
	password, _ = info.Password()
	return info.Username(), password
}

// parts separates a store's URL into the place, which is fixed while the server runs, and the user with
// the password, which may change. info is nil if the URL has no user. It does not use package url, which
// does not support lists of hosts.
func parts(text string) (place string, info *url.Userinfo) {
	scheme, rest, _ := strings.Cut(text, "://")
	end := len(rest)
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		end = at
	}
	at := strings.LastIndexByte(rest[:end], '@')
	if at < 0 {
		return text, nil
	}
	if u, err := url.Parse("any://" + rest[:at] + "@host"); err == nil {
		info = u.User
	}
	return scheme + "://" + rest[at+1:], info
}

// login returns the function that gives new connections a URL's present credentials. It returns nil if the
// URL contains none; the URL is then used unchanged.
func (b *Backend) login(variable, text string) func() (user, password string) {
	place, info := parts(text)
	if info == nil {
		return nil
	}
	if b.logins == nil {
		b.logins = map[string]*login{}
	}
	key := variable + " " + place
	if b.logins[key] == nil {
		b.logins[key] = &login{}
	}
	b.logins[key].current.Store(info)
	return b.logins[key].credentials
}

// admissionTime bounds how long the stores may take to accept or refuse new credentials.
const admissionTime = 5 * time.Second

var errOtherPlace = errors.New("it names other servers, or has other options, than when this server started: only the user and the password may change while it runs, so restart it")

// UseLogins lets new connections use the users and passwords of cfg, which must otherwise equal the
// configuration of Open. Open connections stay. It returns an error if a store refuses the credentials,
// or if anything else in cfg has changed; then nothing changes.
func (b *Backend) UseLogins(ctx context.Context, cfg config.Config) error {
	ctx, cancel := context.WithTimeout(ctx, admissionTime)
	defer cancel()
	b.changing.Lock()
	defer b.changing.Unlock()
	changed := map[*login]*url.Userinfo{}
	before, after := places(b.cfg), places(cfg)
	if len(before) != len(after) {
		return errOtherPlace
	}
	for i, now := range after {
		place, info := parts(now.url)
		if was, had := parts(before[i].url); was != place || (had == nil) != (info == nil) {
			return errOtherPlace
		}
		l := b.logins[now.variable+" "+place]
		if l == nil || l.current.Load().String() == info.String() {
			continue
		}
		if err := admits(ctx, now.url); err != nil {
			return fmt.Errorf("%s, place %d, refuses the new user or password: %w", now.variable, i+1, err)
		}
		changed[l] = info
	}
	for l, info := range changed {
		l.current.Store(info)
	}
	return nil
}

// place is a URL in a variable.
type place struct{ variable, url string }

func places(cfg config.Config) (all []place) {
	for _, sets := range [][][]string{cfg.RedisSets, cfg.RedisNextSets} {
		for _, set := range sets {
			for _, url := range set {
				all = append(all, place{redisVariable, url})
			}
		}
	}
	return append(all, place{"FENCELOCK_STORE", cfg.Store}, place{"FENCELOCK_DATABASE_URL", cfg.DatabaseURL})
}

// redisVariable stands for both lists of Redis nodes, because a node in both lists has one login.
const redisVariable = "FENCELOCK_REDIS_ADDRS"

// admits connects with a URL's user and password. It returns an error only if the store refuses them, not
// if the store cannot be reached now.
func admits(ctx context.Context, text string) error {
	if e, known := engine.Of(text); known { // or a guard in Postgres
		return e.Admits(ctx, text)
	}
	if mysqlguard.IsURL(text) {
		return mysqlguard.Admits(ctx, text)
	}
	return redisnode.Admits(ctx, text)
}
