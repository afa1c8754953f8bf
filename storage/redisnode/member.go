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

// Observe looks at the node.
func (n *Node) Observe(ctx context.Context) (node.Observation, error) {
	reply, err := n.scripts.observe.call(ctx, n.client)
	if err != nil {
		return node.Observation{}, explain(err)
	}
	const parts = 12
	if len(reply) != parts {
		return node.Observation{}, errUnreadable
	}
	info := parseInfo(str(reply[0]))
	n.meter.Memory(number(info["used_memory"]), number(info["maxmemory"]))
	size, _ := reply[1].(int64)
	open, _ := reply[11].(int64)
	seen := node.Observation{
		Incarnation: info["master_replid"],
		Admitted:    open == 1,
		Cluster:     parseMark(str(reply[2])),
		Epoch:       node.Epoch(number(reply[4])),
		Staged:      node.Epoch(number(reply[8])),
		Marks:       marks(reply[7], reply[6], reply[5], reply[10]),
		Empty:       size == 0,
		Note:        str(reply[9]),
		Unfit:       unfit(info),
	}
	if seen.Unfit == "" && size > 0 && reply[2] == nil {
		seen.Unfit = fmt.Sprintf("its database holds %d keys and no mark of this service: give it a database of its own (an empty one, or another number in the address), since admission would delete them", size)
	}
	return seen, nil
}

var errUnreadable = errors.New("unreadable reply")

func marks(high, maxTTL, bootstrapped, secrets any) node.Marks {
	return node.Marks{
		HighWater:    fencing.Token(number(high)),
		MaxTTL:       inMillis(number(maxTTL)),
		Bootstrapped: node.Epoch(number(bootstrapped)),
		Secrets:      node.Secrets(str(secrets)),
	}
}

func str(v any) string {
	s, _ := v.(string)
	return s
}

// number reads a stored number; what is missing or broken reads as 0.
func number(v any) int64 {
	n, _ := exact(v)
	return n
}

// exact reads a stored number where a broken one must not pass for a small one.
func exact(v any) (int64, bool) {
	n, err := strconv.ParseInt(str(v), 10, 64)
	if err != nil || n < 0 || n > int64(fencing.MaxToken) {
		return 0, false
	}
	return n, true
}

func parseMark(text string) node.Cluster {
	nodes, hash, _ := strings.Cut(text, ":")
	n, _ := strconv.Atoi(nodes)
	return node.Cluster{Nodes: n, Hash: hash}
}

func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[key] = value
		}
	}
	return info
}

// unfit says what must be changed before the node may vote.
func unfit(info map[string]string) string {
	major, _, _ := strings.Cut(info["redis_version"], ".")
	version, _ := strconv.Atoi(major)
	switch {
	case info["role"] != "master":
		return "it is a replica of " + info["master_host"] + ":" + info["master_port"] + ": every node must be an independent master (REPLICAOF NO ONE, or list another server)"
	case info["cluster_enabled"] == "1":
		return "it runs in cluster mode: set cluster-enabled no, nodes must be independent"
	case info["maxmemory_policy"] != "noeviction":
		return "its maxmemory-policy is " + info["maxmemory_policy"] + ": set noeviction, an evicted counter or lock is a lost one"
	case version < 7:
		return "it is version " + info["redis_version"] + ": Redis 7 or Valkey 7.2 at least"
	}
	return ""
}

// reading turns the first element of a reader's reply into an error.
func reading(reply []any, err error, want string) error {
	if err != nil {
		return explain(err)
	}
	if len(reply) == 0 {
		return errUnreadable
	}
	switch head := str(reply[0]); {
	case head == want:
		return nil
	case head == "X":
		return node.ErrNotAdmitted
	case head == "S" && len(reply) == 2:
		return &node.StaleEpochError{Epoch: node.Epoch(number(reply[1]))}
	}
	return errUnreadable
}

// Fence installs an epoch and returns the marks.
func (n *Node) InstallEpoch(ctx context.Context, epoch node.Epoch) (node.Marks, error) {
	reply, err := n.scripts.installEpoch.call(ctx, n.client, n.mark(), int64(epoch))
	if err := reading(reply, err, "M"); err != nil {
		return node.Marks{}, err
	}
	if len(reply) != 5 {
		return node.Marks{}, errUnreadable
	}
	for _, mark := range reply[1:4] { // a floor that is too low would repeat tokens
		if _, ok := exact(mark); !ok {
			return node.Marks{}, errUnreadable
		}
	}
	return marks(reply[1], reply[2], reply[3], reply[4]), nil
}

// surveyCount is how many keys one page of a survey looks at.
const surveyCount = 500

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
	reply, err := n.scripts.survey.call(ctx, n.client, n.mark(), epoch, cursor, pattern, surveyCount)
	if err := reading(reply, err, "L"); err != nil {
		return nil, "", err
	}
	if len(reply) < 2 {
		return nil, "", errUnreadable
	}
	for _, entry := range reply[2:] {
		if lock, ok := parseLock(entry); ok {
			locks = append(locks, lock)
		}
	}
	if next = str(reply[1]); next == "0" {
		next = ""
	}
	return locks, next, nil
}

// parseLock reads {resource, "grant ttl owner note meta", left}.
func parseLock(entry any) (lock node.CarriedLock, ok bool) {
	parts, _ := entry.([]any)
	if len(parts) != 3 {
		return lock, false
	}
	left, _ := parts[2].(int64)
	f := fields{rest: str(parts[1])}
	lock = node.CarriedLock{Resource: str(parts[0]), Grant: f.token(), TTL: f.millis(), Owner: f.word()}
	lock.Keyed = f.perhaps() != ""
	lock.Meta = f.tail()
	lock.Remaining = inMillis(left)
	return lock, !f.bad
}

// scanCalls bounds how often one Scan asks a node that holds few locks among
// many counters.
const scanCalls = 16

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

// escapeGlob makes MATCH take the text literally.
func escapeGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}

// Counters reads effective counters.
func (n *Node) Counters(ctx context.Context, epoch node.Epoch, resources []string) ([]fencing.Token, error) {
	args := make([]any, 0, len(resources)+2)
	args = append(args, n.mark(), int64(epoch))
	for _, r := range resources {
		args = append(args, r)
	}
	reply, err := n.scripts.counters.call(ctx, n.client, args...)
	if err := reading(reply, err, "V"); err != nil {
		return nil, err
	}
	counters := make([]fencing.Token, len(reply)-1)
	for i, v := range reply[1:] {
		n, ok := exact(v)
		if !ok {
			return nil, errUnreadable
		}
		counters[i] = fencing.Token(n)
	}
	return counters, nil
}

// Quarantine notes that the node's silence has begun.
func (n *Node) Quarantine(ctx context.Context, note string) error {
	return n.admission(ctx, n.scripts.quarantine, n.mark(), note)
}

// Time reads the server's clock.
func (n *Node) Time(ctx context.Context) (time.Time, error) { return n.client.Time(ctx).Result() }

// Expel takes the admission back.
func (n *Node) Expel(ctx context.Context, incarnation string, epoch node.Epoch, note string) error {
	return n.admission(ctx, n.scripts.expel, n.mark(), incarnation, int64(epoch), note)
}

// Stage purges the node for an admission.
func (n *Node) Stage(ctx context.Context, a node.Admission) error {
	empty := "0"
	if a.OnlyIfEmpty {
		empty = "1"
	}
	return n.admission(ctx, n.scripts.stage, markOf(a.Cluster), a.Incarnation, int64(a.Epoch), int64(a.Bootstrapped), a.Floor.String(), empty, a.Note)
}

// Load writes carried counters and locks.
func (n *Node) Load(ctx context.Context, a node.Admission, locks []node.CarriedLock) error {
	args := []any{a.Incarnation, int64(a.Epoch), n.keep()}
	for _, l := range locks {
		note := ""
		if l.Keyed {
			note = "=" // no attempt takes it back
		}
		args = append(args, l.Resource, l.Counter.String(), l.Owner, l.Grant.String(), millis(max(l.Remaining, time.Millisecond)), millis(l.TTL),
			note, l.Meta)
	}
	return n.admission(ctx, n.scripts.load, args...)
}

// Admit opens the gate.
func (n *Node) Admit(ctx context.Context, a node.Admission) error {
	return n.admission(ctx, n.scripts.admit, a.Incarnation, int64(a.Epoch), int64(a.Bootstrapped), millis(a.MaxTTL), string(a.Secrets))
}

func (n *Node) admission(ctx context.Context, s script, args ...any) error {
	reply, err := s.run(ctx, n.client, append(slices.Clip(s.args), args...)).Text()
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

// ReplaceSecrets replaces the cluster's secrets.
func (n *Node) ReplaceSecrets(ctx context.Context, was, with node.Secrets) error {
	return n.admission(ctx, n.scripts.secrets, n.mark(), string(was), string(with))
}

// RaiseMaxTTL records a longer TTL.
func (n *Node) RaiseMaxTTL(ctx context.Context, ttl time.Duration) error {
	reply, err := n.scripts.maxTTL.call(ctx, n.client, n.mark(), ttl.Milliseconds())
	return reading(reply, err, "OK")
}
