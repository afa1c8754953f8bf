package redisnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// OwnKey is a key that every node of this service holds and no other program's database has.
const OwnKey = "fencelock"

var errUnreadable = errors.New("the node sent a reply that cannot be read")

// Observe reports the node's state.
func (n *Node) Observe(ctx context.Context) (node.Observation, error) {
	reply, err := observeScript.call(ctx, n.client).Slice()
	if err != nil {
		return node.Observation{}, explain(err)
	}
	const parts = 16
	if len(reply) != parts {
		return node.Observation{}, errUnreadable
	}
	info := ParseInfo(str(reply[0]))
	n.meter.Memory(number(info["used_memory"]), number(info["maxmemory"]))
	size, _ := reply[1].(int64)
	open, _ := reply[15].(int64)
	seen := node.Observation{
		Incarnation: info["master_replid"],
		Admitted:    open == 1,
		Cluster:     ParseMark(str(reply[2])),
		Epoch:       node.Epoch(number(reply[4])),
		Staged:      node.Epoch(number(reply[8])),
		Marks:       marks(reply[7], reply[6], reply[5], reply[10:15]...),
		Empty:       size == 0,
		Note:        str(reply[9]),
		Version:     version(info),
		Role:        info["role"],
		Unfit:       Unfit(info),
	}
	if seen.Unfit == "" && size > 0 && reply[2] == nil {
		seen.Unfit = fmt.Sprintf("its database holds %d keys and no mark of this service: give it its own database (an empty one, or another number in the address), since admission would delete them", size)
	}
	return seen, nil
}

// Prove rewrites the record unchanged, unless the node has granted a lock in the last `within`. The write
// fails on a node whose memory or disk is full, or that has fewer replicas than min-replicas-to-write demands.
func (n *Node) Prove(ctx context.Context, within time.Duration) error {
	return n.writes.Prove(ctx, within, func(ctx context.Context) error {
		err := n.change(ctx, proveScript)
		if what, _, cut := strings.Cut(fmt.Sprint(err), " script: "); cut { // the rest names the line of the script
			err = errors.New(what)
		}
		return err
	})
}

// marks parses the marks. more holds the secrets and the map's name, epoch, floor and generation.
func marks(highWater, maxTTL, bootstrapped any, more ...any) node.Marks {
	return node.Marks{
		HighWater:    fencing.Token(number(highWater)),
		MaxTTL:       inMillis(number(maxTTL)),
		Bootstrapped: node.Epoch(number(bootstrapped)),
		Secrets:      node.Secrets(str(more[0])),
		Map:          node.Map{Name: str(more[1]), Epoch: node.Epoch(number(more[2])), Floor: fencing.Token(number(more[3])), Generation: number(more[4])},
	}
}

func str(v any) string {
	s, _ := v.(string)
	return s
}

// number reads a stored number; a missing or broken one reads as 0.
func number(v any) int64 {
	n, _ := exact(str(v))
	return n
}

// markOf returns a cluster as the scripts store and compare it.
func markOf(c node.Cluster) string { return strconv.Itoa(c.Nodes) + ":" + c.Hash }

// ParseMark reads the cluster of a node's record.
func ParseMark(text string) node.Cluster {
	nodes, hash, _ := strings.Cut(strings.TrimSuffix(text, "+"), ":")
	n, _ := strconv.Atoi(nodes)
	return node.Cluster{Nodes: n, Hash: hash}
}

// ParseInfo reads the reply of INFO.
func ParseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info
}

// version names the node's program. Valkey also reports a redis_version, the Redis version with which it is
// compatible.
func version(info map[string]string) string {
	if valkey := info["valkey_version"]; valkey != "" {
		return "Valkey " + valkey
	}
	return "Redis " + info["redis_version"]
}

// Unfit reads a reply of INFO. It returns why the node may not vote and what to change, or "" if the node may
// vote.
func Unfit(info map[string]string) string {
	major, _, _ := strings.Cut(info["redis_version"], ".")
	version, _ := strconv.Atoi(major)
	switch {
	case info["role"] != "master":
		return "it is a replica of " + info["master_host"] + ":" + info["master_port"] + ": every node must be an independent master (REPLICAOF NO ONE, or list another server)"
	case info["cluster_enabled"] == "1":
		return "it runs in cluster mode: set cluster-enabled no, nodes must be independent"
	case info["maxmemory_policy"] != "noeviction":
		return "its maxmemory-policy is " + info["maxmemory_policy"] + ": set noeviction, since eviction would delete locks and counters"
	case version < 7:
		return "it is version " + info["redis_version"] + ": Redis 7 or Valkey 7.2 at least"
	}
	return ""
}

// read calls a script whose reply begins with want, and returns the values after want, at least as many as
// values says. It returns an error if the node is not admitted or in another epoch.
func (n *Node) read(ctx context.Context, s script, want string, values int, args ...any) ([]any, error) {
	reply, err := s.call(ctx, n.client, append([]any{n.mark}, args...)...).Slice()
	switch {
	case err != nil:
		return nil, explain(err)
	case len(reply) == 0:
		return nil, errUnreadable
	}
	switch head, rest := str(reply[0]), reply[1:]; {
	case head == want && len(rest) >= values:
		return rest, nil
	case head == "X":
		return nil, node.ErrNotAdmitted
	case head == "S" && len(rest) == 1:
		return nil, &node.StaleEpochError{Epoch: node.Epoch(number(rest[0]))}
	}
	return nil, errUnreadable
}

// InstallEpoch installs an epoch and returns the marks.
func (n *Node) InstallEpoch(ctx context.Context, epoch node.Epoch) (node.Marks, error) {
	reply, err := n.read(ctx, installEpochScript, "M", 8, int64(epoch))
	if err != nil {
		return node.Marks{}, err
	}
	if _, err := exactAll(reply[:3]); err != nil {
		return node.Marks{}, err
	}
	return marks(reply[0], reply[1], reply[2], reply[3:8]...), nil
}

// exactAll parses numbers. It fails if any is broken, because a token that is too low would be granted twice.
func exactAll(values []any) ([]fencing.Token, error) {
	tokens := make([]fencing.Token, len(values))
	for i, v := range values {
		n, ok := exact(str(v))
		if !ok {
			return nil, errUnreadable
		}
		tokens[i] = fencing.Token(n)
	}
	return tokens, nil
}

const (
	surveyCount = 500 // keys that one page of a survey visits
	scanCalls   = 16  // pages of one Scan, on a node that has few locks among many counters
)

// Survey lists a page of locks.
func (n *Node) Survey(ctx context.Context, epoch node.Epoch, cursor string) ([]node.CarriedLock, string, error) {
	return n.page(ctx, strconv.FormatInt(int64(epoch), 10), cursor, "l:*")
}

func (n *Node) page(ctx context.Context, epoch, cursor, pattern string) (locks []node.CarriedLock, next string, err error) {
	if cursor == "" {
		cursor = "0"
	}
	if _, err := strconv.ParseUint(cursor, 10, 64); err != nil {
		return nil, "", &lockcore.FieldError{Field: "cursor", Reason: "must be the next_cursor of an earlier page"}
	}
	reply, err := n.read(ctx, surveyScript, "L", 1, epoch, cursor, pattern, surveyCount)
	if err != nil {
		return nil, "", err
	}
	for _, entry := range reply[1:] {
		if lock, ok := parseLock(entry); ok {
			locks = append(locks, lock)
		}
	}
	if next = str(reply[0]); next == "0" {
		next = ""
	}
	return locks, next, nil
}

// parseLock reads {resource, "grant owner note ttl meta", remaining}.
func parseLock(entry any) (lock node.CarriedLock, ok bool) {
	parts, _ := entry.([]any)
	if len(parts) != 3 {
		return lock, false
	}
	remaining, _ := parts[2].(int64)
	f := fields{rest: str(parts[1])}
	lock = node.CarriedLock{Resource: str(parts[0]), Grant: f.token(), Owner: f.word()}
	lock.Keyed = f.optional() != ""
	lock.TTL, lock.Meta = f.millis(), f.tail()
	lock.Remaining = inMillis(remaining)
	return lock, !f.bad
}

// Scan lists a page of locked resources.
func (n *Node) Scan(ctx context.Context, prefix, cursor string, limit int) (resources []string, next string, err error) {
	next = cursor
	for range scanCalls {
		locks, after, err := n.page(ctx, "", next, "l:"+escapeGlob(prefix)+"*")
		if err != nil {
			return nil, "", err
		}
		for _, lock := range locks {
			resources = append(resources, lock.Resource)
		}
		if next = after; next == "" || len(resources) >= limit {
			break
		}
	}
	return resources, next, nil
}

// Servers lists the servers whose heartbeats have not expired. It visits all keys, which is acceptable because
// only operators call it.
func (n *Node) Servers(ctx context.Context) (servers []string, err error) {
	const prefix, visits = "s:", 1000
	keys := n.client.Scan(ctx, 0, prefix+"*", visits).Iterator()
	for keys.Next(ctx) {
		servers = append(servers, strings.TrimPrefix(keys.Val(), prefix))
	}
	if err := keys.Err(); err != nil {
		return nil, explain(err)
	}
	slices.Sort(servers) // a scan may show a key twice
	return slices.Compact(servers), nil
}

// escapeGlob makes MATCH take the text literally.
func escapeGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}

// Counters reads effective counters.
func (n *Node) Counters(ctx context.Context, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	args := []any{int64(epoch)}
	for _, r := range resources {
		args = append(args, r)
	}
	reply, err := n.read(ctx, countersScript, "V", len(resources), args...)
	if err != nil {
		return nil, err
	}
	return exactAll(reply[:len(resources)])
}

// RaiseMaxTTL records a longer TTL.
func (n *Node) RaiseMaxTTL(ctx context.Context, ttl time.Duration) error {
	_, err := n.read(ctx, maxTTLScript, "OK", 0, ttl.Milliseconds())
	return err
}

// Time reads the server's clock.
func (n *Node) Time(ctx context.Context) (time.Time, error) { return n.client.Time(ctx).Result() }

// change calls a script that replies with one word.
func (n *Node) change(ctx context.Context, s script, args ...any) error {
	reply, err := s.call(ctx, n.client, args...).Text()
	switch {
	case err != nil:
		return explain(err)
	case reply == "OK":
		return nil
	case reply == "FOREIGN":
		return node.ErrForeign
	case reply == "SHUT":
		return node.ErrNotAdmitted
	}
	return node.ErrRaced
}

// Quarantine begins the node's quarantine.
func (n *Node) Quarantine(ctx context.Context, note string) error {
	return n.change(ctx, quarantineScript, n.mark, note)
}

// Expel revokes the admission.
func (n *Node) Expel(ctx context.Context, incarnation string, epoch node.Epoch, note string) error {
	return n.change(ctx, expelScript, n.mark, incarnation, int64(epoch), note)
}

// Stage purges the node for an admission.
func (n *Node) Stage(ctx context.Context, a node.Admission) error {
	empty, mapped := "0", ""
	if a.Map.Epoch != 0 {
		mapped = "+"
	}
	if a.OnlyIfEmpty {
		empty = "1"
	}
	return n.change(ctx, stageScript, markOf(a.Cluster), a.Incarnation, int64(a.Epoch), int64(a.Bootstrapped), a.Floor.String(), empty, a.Note, mapped)
}

// Load writes carried counters and locks.
func (n *Node) Load(ctx context.Context, a node.Admission, locks []node.CarriedLock) error {
	return n.change(ctx, loadScript, appendLocks([]any{a.Incarnation, int64(a.Epoch), millis(n.opts.CounterTTL)}, locks)...)
}

func appendLocks(args []any, locks []node.CarriedLock) []any {
	for _, l := range locks {
		note := ""
		if l.Keyed {
			note = "=" // attempts are not carried, so no retraction deletes the lock
		}
		args = append(args, l.Resource, l.Counter.String(), l.Owner, l.Grant.String(), millis(max(l.Remaining, time.Millisecond)), millis(l.TTL), note, l.Meta)
	}
	return args
}

// InstallMap installs a map of the node sets.
func (n *Node) InstallMap(ctx context.Context, m node.Map) error {
	_, err := n.read(ctx, installMapScript, "OK", 0, int64(m.Epoch), m.Name, m.Floor.String(), m.Generation)
	return err
}

// Receive writes the locks that move to this node's set.
func (n *Node) Receive(ctx context.Context, epoch node.Epoch, name string, locks []node.CarriedLock) error {
	_, err := n.read(ctx, receiveScript, "OK", 0, appendLocks([]any{int64(epoch), name, millis(n.opts.CounterTTL)}, locks)...)
	return err
}

// Admit opens the gate.
func (n *Node) Admit(ctx context.Context, a node.Admission) error {
	return n.change(ctx, admitScript, a.Incarnation, int64(a.Epoch), int64(a.Bootstrapped), millis(a.MaxTTL), string(a.Secrets),
		a.Map.Name, int64(a.Map.Epoch), a.Map.Floor.String(), a.Map.Generation)
}

// ReplaceSecrets replaces the cluster's secrets.
func (n *Node) ReplaceSecrets(ctx context.Context, was, with node.Secrets) error {
	return n.change(ctx, secretsScript, n.mark, string(was), string(with))
}
