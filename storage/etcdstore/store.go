package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/coreos/go-semver/semver"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/optimistic"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a transaction whose context has no deadline; default 2s. A request to one member may take half.
	Timeout time.Duration
	// Patience is how long Open waits for an etcd that cannot be reached, and then for more of the rows; default 10s.
	Patience time.Duration
	Logger   *slog.Logger // default discards
}

const (
	defaultTimeout  = 2 * time.Second
	defaultPatience = 10 * time.Second
	// minVersion is the first whose members tell how far they have applied the raft log.
	minVersion = "3.4.0"
)

// Store is a replica.Store in etcd. Several, also of other processes, may share a prefix.
type Store struct {
	*optimistic.Store

	conn   *conn
	target *target
	young  bool
}

var _ replica.Store = (*Store)(nil)

// Open connects and loads the rows. It changes nothing if the etcd is unfit, or if there
// is anything else below the prefix. The error says what to do, and never contains the
// URL.
func Open(ctx context.Context, url string, opts Options) (*Store, error) {
	if opts.Timeout == 0 {
		opts.Timeout = defaultTimeout
	}
	if opts.Patience == 0 {
		opts.Patience = defaultPatience
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	t, err := parse(url)
	if err != nil {
		return nil, err
	}
	c, err := dial(t, opts.Timeout/2)
	if err != nil {
		return nil, hinted(err, t)
	}
	s := newService(c, t.prefix)
	if _, err := s.fit(ctx, opts.Patience); err != nil {
		return nil, errors.Join(hinted(err, t), c.client.Close())
	}
	store := &Store{Store: optimistic.New(s, optimistic.Options{Timeout: opts.Timeout, Logger: opts.Logger}), conn: c, target: t}
	err = rowlog.Patiently(ctx, opts.Patience, opts.Logger, s.progress, func(ctx context.Context) (err error) {
		store.young, err = store.Store.Young(ctx)
		return err
	})
	if err != nil {
		return nil, errors.Join(hinted(err, t), store.Close())
	}
	return store, nil
}

// Seen is what Look finds.
type Seen struct {
	Version string
	Members int  // of the cluster
	Named   int  // of them in the URL
	TLS     bool // or all members are on this machine
}

// Look tries what Open would, and changes nothing.
func Look(ctx context.Context, url string, patience time.Duration) (seen Seen, err error) {
	t, err := parse(url)
	if err != nil {
		return seen, err
	}
	c, err := dial(t, patience/2)
	if err != nil {
		return seen, hinted(err, t)
	}
	defer func() { _ = c.client.Close() }()
	s := newService(c, t.prefix)
	if seen.Version, err = s.fit(ctx, patience); err != nil {
		return seen, hinted(err, t)
	}
	members, err := c.client.MemberList(ctx)
	if err != nil {
		return seen, hinted(err, t)
	}
	seen.Members, seen.Named, seen.TLS = len(members.Members), len(t.hosts), t.tls != nil || t.local()
	return seen, nil
}

// fit waits for etcd, and refuses one that cannot keep the rows.
func (s *service) fit(ctx context.Context, patience time.Duration) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, err := s.conn.get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithLimit(10), clientv3.WithKeysOnly())
	if err != nil {
		return "", err
	}
	status, err := s.conn.status(ctx, resp.Header.MemberId)
	if err != nil {
		return "", err
	}
	if err := newEnough(status.Version, s.conn.hosts[s.conn.member()]); err != nil {
		return "", err
	}
	head, err := s.conn.get(ctx, s.prefix+headName)
	if err != nil {
		return "", err
	}
	if len(head.Kvs) == 0 {
		return status.Version, s.vacant(resp)
	}
	if _, err := optimistic.ReadHead(string(head.Kvs[0].Value)); err != nil {
		return "", &unfitError{fmt.Sprintf("the key %shead was written by another version of fencelock (%v): use another prefix in the URL", s.prefix, err)}
	}
	return status.Version, nil
}

func newEnough(version, host string) error {
	v, err := semver.NewVersion(version)
	if err != nil || v.LessThan(*semver.New(minVersion)) {
		return &unfitError{fmt.Sprintf("the etcd at %s is version %s: fencelock needs %s or later, whose members report how much they have committed, "+
			"so that a restore is noticed. Upgrade etcd, or use another one", host, version, minVersion)}
	}
	return nil
}

// vacant refuses a prefix with keys of others.
func (s *service) vacant(resp *clientv3.GetResponse) error {
	for _, kv := range resp.Kvs {
		if _, isEntry := s.number(kv.Key); !isEntry && !s.owns(string(kv.Key)) {
			return &unfitError{fmt.Sprintf("other programs have keys below %s (%s): use another prefix in the URL", s.prefix, kv.Key)}
		}
	}
	return nil
}

// owns tells keys other than rows.
func (s *service) owns(key string) bool {
	return key == s.prefix+headName || key == s.prefix+claimName || key == s.prefix+clockName || strings.HasPrefix(key, s.prefix+topicName)
}

// Young tells whether nothing that was ever here can have been lost: this etcd was never
// restored before the first server started. Then a store that holds nothing never held
// anything.
func (s *Store) Young() bool { return s.young }

// Place names the members and the prefix.
func (s *Store) Place() string { return s.target.place() }

// Close stops to follow the rows and closes the connection.
func (s *Store) Close() error {
	return errors.Join(s.Store.Close(), s.conn.client.Close())
}
