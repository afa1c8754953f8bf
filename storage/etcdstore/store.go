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

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/optimistic"
	"github.com/fencelock/fencelock/storage/rowlog"
)

// Options tune a Store. The zero value of a field takes its default.
type Options struct {
	// Timeout bounds a transaction whose context has no deadline; default 2s. A request to a single member
	// may take half of Timeout.
	Timeout time.Duration
	// Patience is how long Open waits for an unreachable etcd, and then for progress in reading the rows;
	// default 10s.
	Patience time.Duration
	Logger   *slog.Logger // default discards
	// Credentials, if not nil, returns the user and the password of each login, instead of those of
	// the URL, which must have some. It is called from several goroutines and must not block.
	Credentials func() (user, password string)
}

const (
	defaultTimeout  = 2 * time.Second
	defaultPatience = 10 * time.Second
	// minVersion is the first version whose members report how far they have applied the raft log.
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

// Open connects and loads the rows. It changes nothing if the etcd is unfit, or if the prefix contains other
// keys. The error says what to do, and never contains the URL.
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
	if opts.Credentials != nil {
		c.login.credentials = opts.Credentials
	}
	s := newService(c, t.prefix)
	if _, err := s.fit(ctx, opts.Patience); err != nil {
		return nil, errors.Join(hinted(err, t), c.client.Close())
	}
	for _, other := range s.others {
		opts.Logger.WarnContext(ctx, "this etcd has the locks of another fencelock, and none here yet: a server there and this one grant the same resources. If they are one cluster, stop this server and name that prefix", "here", s.prefix, "other", other)
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

// Seen is the result of Look.
type Seen struct {
	Version string
	Members int  // of the cluster
	Named   int  // how many of them the URL names
	TLS     bool // or all members are on this machine
	// Others are prefixes that hold locks of fencelock, if this one holds none.
	Others []string
}

// Look checks the same things as Open, and changes nothing.
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
	seen.Others = s.others
	members, err := c.client.MemberList(ctx)
	if err != nil {
		return seen, hinted(err, t)
	}
	seen.Members, seen.Named, seen.TLS = len(members.Members), len(t.hosts), t.tls != nil || t.local()
	return seen, nil
}

// fit waits for etcd, and refuses an etcd that cannot keep the rows.
func (s *service) fit(ctx context.Context, patience time.Duration) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resp, status, err := s.first(ctx)
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
		s.others = s.neighbours(ctx)
		return status.Version, s.vacant(resp)
	}
	if _, err := optimistic.ReadHead(string(head.Kvs[0].Value)); err != nil {
		return "", &unfitError{fmt.Sprintf("the locks below %s are those of another version of fencelock (%v): run that version, or stop all servers and follow docs/how-to/upgrade.md#upgrade-or-restart-servers. "+
			"A server with other locks beside them would grant what they hold", s.prefix, err)}
	}
	return status.Version, nil
}

// first reads the first keys below the prefix, and the state of the member that served them. It tries until one member
// has done both.
func (s *service) first(ctx context.Context) (resp *clientv3.GetResponse, status *clientv3.StatusResponse, err error) {
	for {
		resp, err = s.conn.get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithLimit(10), clientv3.WithKeysOnly())
		if err != nil {
			return nil, nil, err
		}
		status, err = s.conn.status(ctx, resp.Header.MemberId)
		if again := unanswered(err) || errors.Is(err, errNoMember); !again || !pause.For(ctx, retryPause) {
			return resp, status, err
		}
	}
}

func newEnough(version, host string) error {
	v, err := semver.NewVersion(version)
	if err != nil || v.LessThan(*semver.New(minVersion)) {
		return &unfitError{fmt.Sprintf("the etcd at %s is version %s: fencelock needs %s or later, whose members report how much they have committed, "+
			"so that a restore is noticed. Upgrade etcd, or use another one", host, version, minVersion)}
	}
	return nil
}

// vacant refuses a prefix that contains keys of other programs.
func (s *service) vacant(resp *clientv3.GetResponse) error {
	for _, kv := range resp.Kvs {
		if _, isEntry := s.number(kv.Key); !isEntry && !s.owns(string(kv.Key)) {
			return &unfitError{fmt.Sprintf("other programs have keys below %s (%s), and there are no locks: name the prefix of the servers that run; a new cluster needs a prefix without keys", s.prefix, kv.Key)}
		}
	}
	return nil
}

// owns reports whether a key is one of fencelock's that is not a row.
func (s *service) owns(key string) bool {
	return key == s.prefix+headName || key == s.prefix+claimName || key == s.prefix+clockName || strings.HasPrefix(key, s.prefix+topicName)
}

// Young reports whether it is certain that nothing was lost: this etcd was never restored before the first
// server started. Then an empty store was always empty.
func (s *Store) Young() bool { return s.young }

// Place names the members and the prefix.
func (s *Store) Place() string { return s.target.place() }

// Close stops following the rows and closes the connection.
func (s *Store) Close() error {
	return errors.Join(s.Store.Close(), s.conn.client.Close())
}
