package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cause"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/storage/redisnode"
)

const (
	clocksApart = time.Second // how far nodes' clocks may be apart
	roundTrips  = 5           // after the one that connects
	tripsInTime = 10          // a time limit of a node should be this many round trips long
	nearlyFull  = 80          // percent of maxmemory
)

// redisNode is the observed state of a node.
type redisNode struct {
	name, host string
	info       map[string]string
	ahead      time.Duration // how far its clock is ahead of this machine's
	trip       time.Duration // the median round trip
	keys       int64
	marked     bool // it contains this service's own key
	record     record
	forgets    bool // its default user may not write, but Redis loads the append-only file as that user
	alone      bool // only this machine can reach it
	protected  bool // it requires a password
	encrypted  bool
	cert       *x509.Certificate // nil without TLS
}

// redis checks every node, set by set.
func (r *Report) redis(ctx context.Context, cfg config.Config, now time.Time) {
	seen := map[string]string{} // run id: node
	sets, looked := cfg.RedisSets, map[string]bool{}
	for _, set := range sets {
		looked[clusterOf(set).Hash] = true
	}
	for _, next := range cfg.RedisNextSets {
		if hash := clusterOf(next).Hash; !looked[hash] { // only an added set; the order of its nodes does not matter
			sets, looked[hash] = append(slices.Clip(sets), next), true
		}
	}
	var longest time.Duration
	for i, set := range sets {
		var nodes []redisNode
		for _, url := range set {
			if n, ok := r.ask(ctx, url); ok {
				r.node(n, cfg, now)
				r.twice(n, seen)
				r.several(ctx, url, n)
				nodes = append(nodes, n)
			}
		}
		r.lookedf("%d of %d Redis nodes", len(nodes), len(set))
		longest = max(longest, r.records(cfg, i+1, clusterOf(set), nodes))
		r.clocks(nodes)
		r.hosts(set)
		if need := quorum.Of(len(set)); len(nodes) < need {
			r.Add(Wrong, "FENCELOCK_REDIS_ADDRS", fmt.Sprintf("%d of %d nodes respond, and a quorum is %d: nothing can be granted", len(nodes), len(set), need), "start the other nodes, or correct their addresses")
		}
	}
	if longest != 0 && longest != cfg.MaxTTL {
		r.Add(Wrong, "FENCELOCK_MAX_TTL", fmt.Sprintf("it is %s, and the longest that any server of this cluster has had is %s: all servers need the same", cfg.MaxTTL, longest), "set it to "+longest.String()+", or change it on every server")
	}
}

// ask queries a node, and reports a node that does not respond.
func (r *Report) ask(ctx context.Context, url string) (n redisNode, ok bool) {
	opts, err := redisnode.ParseAddr(url)
	if err != nil {
		r.Add(Wrong, "FENCELOCK_REDIS_ADDRS", err.Error(), "correct the address")
		return n, false
	}
	n.name = opts.Addr + "/" + strconv.Itoa(opts.DB)
	n.host, _, _ = net.SplitHostPort(opts.Addr)
	n.alone, n.protected, n.encrypted = config.OnLoopback(opts.Addr), opts.Password != "", opts.TLSConfig != nil
	if opts.TLSConfig != nil {
		if opts.TLSConfig.InsecureSkipVerify {
			r.Add(Risky, n.name, "skip_verify in its address: anyone on the network path can impersonate the node", "remove that; SSL_CERT_FILE names a private authority")
		}
		opts.TLSConfig.VerifyConnection = func(s tls.ConnectionState) error { n.cert = s.PeerCertificates[0]; return nil }
	}
	client := redis.NewClient(plain(opts))
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := n.read(ctx, client); err != nil {
		r.Add(Wrong, n.name, "it "+cause.InWords(err), remedyOf(err, n.encrypted))
		return n, false
	}
	return n, true
}

// remedyOf returns the remedy for a node that could not be read.
func remedyOf(err error, encrypted bool) string {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, names := errors.AsType[x509.HostnameError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	alert := cause.AlertOf(err)
	timeout, isNet := errors.AsType[net.Error](err)
	silent := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, context.DeadlineExceeded) || isNet && timeout.Timeout()
	switch {
	case unknown:
		return "add the file of its authority to its URL as ?ca=, for every fencelock"
	case names:
		return "use a name of the certificate in its address, or give it a certificate for this one"
	case invalid:
		return "renew its certificate"
	case encrypted && (silent || alert != nil):
		return "start it; if its port has no TLS, use redis://; if it asks for client certificates, add ?cert= and &key= to its URL"
	case silent:
		return "start it; if its port speaks TLS, use rediss://"
	}
	return "start it, or correct its address, user, password or rights (deploy/redis/users.acl has those that are needed)"
}

// plain returns options with which the library adds no commands of its own, and repeats none.
func plain(opts *redis.Options) *redis.Options {
	opts.MaxRetries, opts.DialerRetries, opts.PoolSize, opts.Protocol = -1, 1, 1, 2
	opts.DialTimeout, opts.ReadTimeout, opts.ContextTimeoutEnabled = answerTime, answerTime, true
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return opts
}

// read reads the node's state with commands that change nothing.
func (n *redisNode) read(ctx context.Context, client *redis.Client) error {
	if err := client.Time(ctx).Err(); err != nil { // makes the connection
		return err
	}
	var trips []time.Duration
	for range roundTrips {
		sent := time.Now()
		at, err := client.Time(ctx).Result()
		if err != nil {
			return err
		}
		took := time.Since(sent)
		if len(trips) == 0 || took < slices.Min(trips) {
			n.ahead = at.Sub(sent.Add(took / 2))
		}
		trips = append(trips, took)
	}
	slices.Sort(trips)
	n.trip = trips[len(trips)/2]
	text, err := client.Info(ctx).Result()
	if err != nil {
		return err
	}
	n.info = redisnode.ParseInfo(text)
	if redisnode.Unfit(n.info) != "" { // an unfit node, for example in cluster mode, may refuse the next commands
		return nil
	}
	if n.keys, err = client.DBSize(ctx).Result(); err != nil {
		return err
	}
	own, err := client.Exists(ctx, redisnode.OwnKey).Result()
	n.marked = own > 0
	if err != nil {
		return err
	}
	if n.record, err = readRecord(ctx, client); err != nil {
		return err
	}
	n.forgets = cannotLoad(ctx, client)
	// A user that may call scripts gets NOSCRIPT, because no node has this script.
	err = client.EvalSha(ctx, strings.Repeat("0", 40), nil).Err()
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		return nil
	}
	return err
}

// cannotLoad reports whether the default user lacks rights for the service's commands. Redis loads its
// append-only file as that user, even if the user is disabled, and refuses each command in the file that
// the user may not run. It returns false if the service's own user may not ask.
func cannotLoad(ctx context.Context, client *redis.Client) bool {
	answer, err := client.Do(ctx, "ACL", "DRYRUN", "default", "SET", redisnode.OwnKey, "").Text()
	return err == nil && answer != "OK"
}

// node reports the problems of one node.
func (r *Report) node(n redisNode, cfg config.Config, now time.Time) {
	if reason := redisnode.Unfit(n.info); reason != "" {
		text, do, _ := strings.Cut(reason, ": ")
		r.Add(Wrong, n.name, text+", so it may not vote", do)
	}
	if n.keys > 0 && !n.marked { // keys is 0 if the node is unfit
		r.Add(Wrong, n.name, fmt.Sprintf("its database holds %d keys and no mark of this service, so it may not vote", n.keys),
			"give it its own database: an empty one, or another number in the address")
	}
	r.memory(n)
	r.persistence(n, cfg)
	if !n.alone && !n.protected {
		r.Add(Risky, n.name, "it asks for no password: every machine that reaches it may change locks", "use deploy/redis/users.acl, or keep it in a private network")
	}
	if !n.alone && n.protected && !n.encrypted {
		r.Add(Risky, n.name, "its password travels unencrypted", "use rediss://, or keep it in a private network")
	}
	if n.cert != nil {
		r.dates(n.name, n.cert, now, "renew it, and have Redis read it: CONFIG SET tls-cert-file with the same path, or a restart of the node")
	}
	r.distance(n, "FENCELOCK_NODE_TIMEOUT", cfg.NodeTimeout, "a request waits")
	r.distance(n, "FENCELOCK_NODE_DOWN_AFTER", cfg.NodeDownAfter, "it counts as down after")
}

// distance compares the round trip to a node with a time limit.
func (r *Report) distance(n redisNode, setting string, limit time.Duration, what string) {
	wanted := tripsInTime * n.trip
	if wanted <= limit {
		return
	}
	severity, means := Risky, "a late reply is a lost vote"
	if n.trip >= limit {
		severity, means = Wrong, "it has no vote"
	}
	r.Add(severity, n.name, fmt.Sprintf("a round trip to it takes %s, and %s %s: %s", n.trip.Round(10*time.Microsecond), what, limit, means),
		fmt.Sprintf("set %s to ten round trips, %s, or use a nearer node", setting, wanted.Round(time.Millisecond)))
}

func (r *Report) memory(n redisNode) {
	used, _ := strconv.ParseInt(n.info["used_memory"], 10, 64)
	most, _ := strconv.ParseInt(n.info["maxmemory"], 10, 64)
	switch {
	case most == 0:
		r.Add(Risky, n.name, "it has no maxmemory: when the machine's memory runs out, the kernel kills it", "set maxmemory; a lock takes about 500 bytes (docs/explanation/scale.md)")
	case used*100 > most*nearlyFull:
		r.Add(Risky, n.name, fmt.Sprintf("it uses %d %% of its maxmemory: at 100 %% it accepts no locks", used*100/most), "raise maxmemory")
	}
}

func (r *Report) persistence(n redisNode, cfg config.Config) {
	persists := n.info["aof_enabled"] == "1"
	if persists && n.forgets {
		r.Add(Wrong, n.name, "its default user may not write, and Redis loads the append-only file as that user: the next restart empties it",
			"ACL SETUSER default off ~* &* +@all, and the same line in its file of users (deploy/redis/users.acl): nobody can log in as it")
	}
	switch {
	case !persists && cfg.Bootstrap == "new":
		r.Add(Wrong, n.name, "it keeps nothing on disk (appendonly no), and FENCELOCK_BOOTSTRAP=new skips the wait for old leases on empty nodes: a power cut that empties all of them would grant what is still held",
			"unset FENCELOCK_BOOTSTRAP after the first start, or set appendonly yes")
	case !persists:
		r.Add(Risky, n.name, "it keeps nothing on disk (appendonly no): after a power cut of most nodes, tokens start again above the clock or the guard's highest mark",
			"set appendonly yes, unless docs/how-to/five-redis.md says that you can do without")
	case n.info["aof_last_write_status"] == "err":
		r.Add(Wrong, n.name, "its last write to the disk failed", "look at its log, and at the space on its disk")
	}
}

// twice reports two addresses of the same server, which would have two votes.
func (r *Report) twice(n redisNode, seen map[string]string) {
	id := n.info["run_id"]
	if other, ok := seen[id]; ok && id != "" {
		r.Add(Wrong, n.name, "it is the same server as "+other+": both are lost at once", "give each address its own server")
	}
	seen[id] = n.name
}

// clocks reports clocks that differ more than clocks of synchronized machines do.
func (r *Report) clocks(nodes []redisNode) {
	if len(nodes) == 0 {
		return
	}
	first, last := nodes[0], nodes[0]
	for _, n := range nodes {
		if n.ahead < first.ahead {
			first = n
		}
		if n.ahead > last.ahead {
			last = n
		}
	}
	if apart := last.ahead - first.ahead; apart > clocksApart {
		r.Add(Risky, last.name, fmt.Sprintf("its clock is %s ahead of that of %s: when one of them is set, its locks end early or late, and it is quarantined", apart.Round(time.Millisecond), first.name),
			"keep both in step by slewing (chrony without makestep, or ntpd -x)")
	}
	if off := max(last.ahead, -first.ahead); off > clocksApart {
		r.Add(Risky, "this machine's clock", fmt.Sprintf("it differs by up to %s from those of the Redis nodes", off.Round(100*time.Millisecond)), "run chrony or ntpd here, too, if this machine runs a server")
	}
}

// hosts reports a machine with enough nodes that its loss ends the quorum.
func (r *Report) hosts(set []string) {
	on := map[string]int{}
	for _, url := range set {
		if opts, err := redisnode.ParseAddr(url); err == nil {
			host, _, _ := net.SplitHostPort(opts.Addr)
			on[host]++
		}
	}
	for host, n := range on {
		if len(set) > 1 && len(set)-n < quorum.Of(len(set)) {
			r.Add(Risky, "FENCELOCK_REDIS_ADDRS", fmt.Sprintf("%d of %d nodes are on the host %s: if it fails, the quorum is lost", n, len(set), host), "put the nodes on different machines, in different zones")
		}
	}
}
