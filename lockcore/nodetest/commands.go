package nodetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// commands are the verbs that are not operations.
var commands = map[string]func(*suite, line) string{
	"ticket":          (*suite).makeTicket,
	"listen":          (*suite).subscribe,
	"wakes":           (*suite).wakes,
	"counters":        (*suite).readCounters,
	"survey":          (*suite).listLocks,
	"scan":            (*suite).scan,
	"servers":         (*suite).servers,
	"observe":         func(s *suite, _ line) string { return s.observation() },
	"fence":           (*suite).fence,
	"raise":           (*suite).raise,
	"plan":            (*suite).plan,
	"stage":           func(s *suite, l line) string { return s.failure(s.Node.Stage(s.Context(), s.planned(l))) },
	"admit":           (*suite).admitPlanned,
	"bootstrap":       (*suite).bootstrapAgain,
	"load":            (*suite).load,
	"lock":            (*suite).makeLock,
	"quarantine":      func(s *suite, l line) string { return s.failure(s.Node.Quarantine(s.Context(), l.words[0])) },
	"expel":           (*suite).expel,
	"join":            (*suite).join,
	"replace-secrets": (*suite).replaceSecrets,
	"map":             (*suite).changeMap,
	"receive":         (*suite).receive,
	"shut":            (*suite).shut,
	"restart":         (*suite).restart,
	"wipe":            func(s *suite, _ line) string { s.Wipe(); return s.observation() },
	"pass":            (*suite).pass,
	"at":              (*suite).at,
	"by":              (*suite).by,
	"spoil":           func(s *suite, l line) string { s.Spoil(l.words[0]); return "" },
}

// makeTicket reads "ticket NAME SERVER ARRIVAL [id=…] [holder=…] [keyed]". The name is the id
// unless that is given.
func (s *suite) makeTicket(l line) string {
	t := node.Ticket{ID: l.words[0], Server: l.words[1], Keyed: slices.Contains(l.words, "keyed")}
	if id, ok := l.pairs["id"]; ok {
		t.ID = id
	}
	_, err := fmt.Sscan(l.words[2], &t.Arrival)
	s.must(err)
	t.Holder = usual(t.ID)
	if holder, ok := l.pairs["holder"]; ok {
		t.Holder = holder
	}
	s.tickets[l.words[0]] = t
	return ""
}

func (s *suite) subscribe(l line) string {
	for _, server := range l.words {
		s.listening[server] = listen(s, s.Node, server)
	}
	return ""
}

// wakes prints the notifications of a server since the last call. It causes one more notification itself: they
// arrive in order, so after that one all earlier ones have arrived.
func (s *suite) wakes(l line) string {
	s.Helper()
	server := l.words[0]
	mark := node.Ticket{ID: "mark", Server: server, Arrival: 1}
	resource := "only for wakes of " + server
	s.do(node.Op{Kind: node.OpEnqueue, Resource: resource, Ticket: mark})
	s.do(node.Op{Kind: node.OpAcquire, Resource: resource, Owner: "M", TTL: longTTL})
	var woken []string
	for {
		wake, ok := s.listening[server].next()
		switch {
		case !ok:
			return "no notification within " + patience.String()
		case wake.ticket.ID == mark.ID:
			return strings.Join(append(woken, "no more"), "\n")
		}
		woken = append(woken, s.print(wake.resource)+": "+s.printTicket(wake.ticket))
	}
}

func (s *suite) readCounters(l line) string {
	epoch := s.epochOf(l)
	counters, err := s.Node.Counters(s.Context(), epoch, l.words)
	if err != nil {
		return s.failure(err)
	}
	var texts []string
	for _, c := range counters {
		texts = append(texts, s.printToken(c))
	}
	return strings.Join(texts, " ")
}

// epochOf returns the epoch of a call: the line's, or else the suite's.
func (s *suite) epochOf(l line) node.Epoch {
	s.Helper()
	text, ok := l.pairs["epoch"]
	if !ok {
		return s.epoch
	}
	epoch, err := s.parseEpoch(text)
	s.must(err)
	return epoch
}

func (s *suite) listLocks(l line) string {
	locks, err := surveyAll(s.Context(), s.Node, s.epochOf(l))
	if err != nil {
		return s.failure(err)
	}
	var texts []string
	for _, lock := range locks {
		texts = append(texts, s.carried(lock))
	}
	slices.Sort(texts)
	return strings.Join(append(slices.Compact(texts), "no more"), "\n")
}

// scan reads "scan [PREFIX]".
func (s *suite) scan(l line) string {
	found, err := scanAll(s.Context(), s.Node, strings.Join(l.words, ""), 2)
	if err != nil {
		return s.failure(err)
	}
	for i := range found {
		found[i] = quoted(found[i])
	}
	return strings.Join(append(found, "no more"), " ")
}

func (s *suite) servers(line) string {
	servers, err := s.Node.Servers(s.Context())
	s.must(err)
	servers = slices.DeleteFunc(servers, func(name string) bool { return name == stranger })
	slices.Sort(servers)
	return strings.Join(servers, " ")
}

// observation prints the node's state, except the fields for display, and whether the incarnation has changed
// since the last call.
func (s *suite) observation() string {
	s.Helper()
	seen := s.observe()
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if seen.Incarnation != s.incarnation && s.incarnation != "" {
		add("another incarnation,")
	}
	s.incarnation = seen.Incarnation
	add("%s", map[bool]string{true: "admitted", false: "not admitted"}[seen.Admitted])
	if seen.Cluster != s.cluster && seen.Cluster != (node.Cluster{}) {
		add("cluster=%s/%d", seen.Cluster.Hash, seen.Cluster.Nodes)
	}
	if seen.Empty {
		add("empty")
	}
	if seen.Epoch != 0 {
		add("epoch=%s", s.printEpoch(seen.Epoch))
	}
	if seen.Staged != 0 {
		add("staged=%s", s.printEpoch(seen.Staged))
	}
	if seen.Note != "" {
		add("note=%s", s.printNote(seen.Note))
	}
	if seen.Unfit != "" {
		add("unfit=%q", seen.Unfit)
	}
	if seen.Marks != (node.Marks{}) {
		add("%s", s.marks(seen.Marks))
	}
	return strings.Join(parts, " ")
}

// restart prints whether the node has another incarnation and is not admitted. The rest of its state depends
// on the kind of node.
func (s *suite) restart(line) string {
	s.Helper()
	before := s.observe()
	s.Restart()
	if seen := s.observe(); seen.Admitted || seen.Incarnation == before.Incarnation {
		return s.observation()
	}
	s.incarnation = ""
	return "another incarnation, not admitted"
}

// Notes. "missed E" is the note of a node that missed a bootstrap.
func (s *suite) note(text string) string {
	s.Helper()
	if epoch, ok := strings.CutPrefix(text, "missed "); ok {
		e, err := s.parseEpoch(epoch)
		s.must(err)
		return node.MissedNote(e)
	}
	return text
}

func (s *suite) printNote(note string) string {
	var epoch node.Epoch
	if _, err := fmt.Sscanf(note, "missed %d", &epoch); err == nil {
		note = "missed " + s.printEpoch(epoch)
	}
	return quoted(note)
}

// fence reads "fence EPOCH": the fenced read of a rejoin. The following lines are in that epoch.
func (s *suite) fence(l line) string {
	epoch, err := s.parseEpoch(l.words[0])
	s.must(err)
	marks, err := s.Node.InstallEpoch(s.Context(), epoch)
	if err != nil {
		return s.failure(err)
	}
	s.epoch = epoch
	return s.marks(marks)
}

func (s *suite) raise(l line) string {
	ttl, err := s.time(l.words[0])
	s.must(err)
	return s.failure(s.Node.RaiseMaxTTL(s.Context(), ttl))
}

// plan reads "plan NAME …": an admission that the node would accept now, unless the pairs change it.
// "from=NAME" starts from another plan.
func (s *suite) plan(l line) string {
	s.Helper()
	a, ok := s.plans[l.pairs["from"]]
	if !ok {
		a = s.bootstrap(s.observe(), 100)
	}
	for key, value := range l.pairs {
		var err error
		switch key {
		case "from":
		case "floor":
			a.Floor, err = s.token(value)
		case "epoch":
			a.Epoch, err = s.parseEpoch(value)
		case "bootstrapped":
			a.Bootstrapped, err = s.parseEpoch(value)
		case "note":
			a.Note = s.note(value)
		case "incarnation":
			a.Incarnation = map[string]string{"another": "0123456789abcdef0123456789abcdef01234567", "now": s.observe().Incarnation}[value]
		case "cluster":
			a.Cluster = s.parseCluster(value)
		case "longest":
			a.MaxTTL, err = s.time(value)
		case "secrets":
			a.Secrets = secret(value)
		case "map":
			a.Map = s.parseMap(l)
		case "map-floor", "generation", "since":
		default:
			err = fmt.Errorf("a plan has no %q", key)
		}
		s.must(err)
	}
	a.OnlyIfEmpty = slices.Contains(l.words, "only-if-empty")
	s.plans[l.words[0]] = a
	return ""
}

func (s *suite) planned(l line) node.Admission {
	s.Helper()
	a, ok := s.plans[l.words[0]]
	if !ok {
		s.Fatalf("there is no plan %q", l.words[0])
	}
	return a
}

func (s *suite) admitPlanned(l line) string {
	a := s.planned(l)
	err := s.Node.Admit(s.Context(), a)
	if err == nil {
		s.epoch = a.Epoch
	}
	return s.failure(err)
}

// bootstrapAgain reads "bootstrap [FLOOR] [base]". The first bootstrap, and one with "base", set the values of
// "+0" and "E".
func (s *suite) bootstrapAgain(l line) string {
	floor := fencing.Token(100)
	if len(l.words) > 0 {
		var err error
		floor, err = s.token(l.words[0])
		s.must(err)
	}
	if s.first == 0 || slices.Contains(l.words, "base") {
		s.admit(floor)
	} else {
		s.install(s.bootstrap(s.observe(), floor))
	}
	return ""
}

// makeLock reads "lock NAME counter=… owner=… grant=… left=… [resource=…] [keyed]".
func (s *suite) makeLock(l line) string {
	s.Helper()
	lock := node.CarriedLock{Resource: l.words[0], Owner: l.pairs["owner"], Meta: l.pairs["meta"], TTL: longTTL, Keyed: slices.Contains(l.words, "keyed")}
	if lock.Owner == "" {
		lock.TTL = 0
	}
	for key, value := range l.pairs {
		var err error
		switch key {
		case "counter":
			lock.Counter, err = s.token(value)
		case "grant":
			lock.Grant, err = s.token(value)
		case "left":
			lock.Remaining, err = s.time(value)
		case "resource":
			lock.Resource = value
		}
		s.must(err)
	}
	s.locks[l.words[0]] = lock
	return ""
}

func (s *suite) locksOf(names []string) (locks []node.CarriedLock) {
	for _, name := range names {
		locks = append(locks, s.locks[name])
	}
	return locks
}

// load reads "load PLAN LOCK…".
func (s *suite) load(l line) string {
	return s.failure(s.Node.Load(s.Context(), s.planned(l), s.locksOf(l.words[1:])))
}

// receive reads "receive MAP LOCK…".
func (s *suite) receive(l line) string {
	return s.failure(s.Node.Receive(s.Context(), s.epochOf(l), l.words[0], s.locksOf(l.words[1:])))
}

// expeller is the part of node.Clocked that changes the node.
type expeller interface {
	Expel(ctx context.Context, incarnation string, epoch node.Epoch, note string) error
}

func (s *suite) expel(l line) string {
	s.Helper()
	seen := s.observe()
	epoch := seen.Epoch
	if _, ok := l.pairs["epoch"]; ok {
		epoch = s.epochOf(l)
	}
	if l.pairs["incarnation"] != "" {
		seen.Incarnation = "another incarnation"
	}
	expels, _ := s.Node.(expeller) // the scenario needs one
	return s.failure(expels.Expel(s.Context(), seen.Incarnation, epoch, l.words[0]))
}

// parseCluster reads "HASH/NODES"; "own" is the suite's.
func (s *suite) parseCluster(text string) (c node.Cluster) {
	s.Helper()
	if text == "own" {
		return s.cluster
	}
	hash, nodes, _ := strings.Cut(text, "/")
	_, err := fmt.Sscan(nodes, &c.Nodes)
	s.must(err)
	c.Hash = hash
	return c
}

func (s *suite) join(l line) string {
	s.Node.Join(s.parseCluster(l.words[0]))
	return ""
}

// replaceSecrets reads "replace-secrets WAS WITH", each a digit or "none".
func (s *suite) replaceSecrets(l line) string {
	secrets := func(name string) node.Secrets {
		if name == "none" {
			return ""
		}
		return secret(name)
	}
	return s.failure(s.Node.ReplaceSecrets(s.Context(), secrets(l.words[0]), secrets(l.words[1])))
}

// parseMap reads map=NAME [map-floor=…] [generation=…] [since=…].
func (s *suite) parseMap(l line) node.Map {
	s.Helper()
	m := node.Map{Name: l.pairs["map"], Epoch: s.epochOf(l)}
	var err error
	if floor, ok := l.pairs["map-floor"]; ok {
		m.Floor, err = s.token(floor)
		s.must(err)
	}
	if since, ok := l.pairs["since"]; ok {
		m.Epoch, err = s.parseEpoch(since)
		s.must(err)
	}
	if text, ok := l.pairs["generation"]; ok {
		_, err = fmt.Sscan(text, &m.Generation)
		s.must(err)
	}
	return m
}

// changeMap reads "map NAME [map-floor=…] [generation=…] [epoch=…]".
func (s *suite) changeMap(l line) string {
	l.pairs["map"] = l.words[0]
	return s.failure(s.Node.InstallMap(s.Context(), s.parseMap(l)))
}

// at reads "at TOKEN EPOCH", which sets the values of "+0" and "E".
func (s *suite) at(l line) string {
	s.Helper()
	_, err := fmt.Sscan(l.words[0]+" "+l.words[1], &s.base, &s.first)
	s.must(err)
	s.epoch = s.first
	return ""
}

// by reads "by MAP [epoch=…]", which sets the map of operations that name none.
func (s *suite) by(l line) string {
	s.mapName, s.epoch = l.words[0], s.epochOf(l)
	return ""
}

// pass reads "pass TIME": the node's clock, which a test sets, moves forward.
func (s *suite) pass(l line) string {
	d, err := s.time(l.words[0])
	s.must(err)
	s.Advance(d)
	return ""
}

// shut executes every operation that needs the gate, and prints those that were not refused.
func (s *suite) shut(line) string {
	s.Helper()
	ctx, epoch := s.Context(), s.observe().Epoch
	_, fenced := s.Node.InstallEpoch(ctx, epoch+5)
	_, _, surveyed := s.Node.Survey(ctx, epoch, "")
	_, counted := s.Node.Counters(ctx, epoch, []string{"a"})
	_, _, scanned := s.Node.Scan(ctx, "", "", 10)
	var passed []string
	for what, err := range map[string]error{
		"fence": fenced, "survey": surveyed, "counters": counted, "scan": scanned, "raise": s.Node.RaiseMaxTTL(ctx, longTTL),
	} {
		if !errors.Is(err, node.ErrNotAdmitted) {
			passed = append(passed, what+": "+s.failure(err))
		}
	}
	refused := s.reply(0, node.Reply{Outcome: node.NotAdmitted, Epoch: epoch})
	for _, text := range []string{
		"acquire a L1", "confirm a L1 5", "extend a L1 max", "release a L1 5", "retract a L1", "read a", "enqueue a shut", "heartbeat s1",
	} {
		s.tickets["shut"] = node.Ticket{ID: "t1", Server: "s1", Arrival: 1}
		l, err := parseLine(text)
		s.must(err)
		op := s.op(l)
		for _, op.Epoch = range []node.Epoch{max(epoch, 1), epoch + 1} {
			if reply := s.reply(op.Kind, s.do(op)); reply != refused {
				passed = append(passed, text+": "+reply)
			}
		}
	}
	return strings.Join(append(passed, "all else is refused"), "\n")
}

// failure names the kind of an error. Its text differs between nodes.
func (s *scale) failure(err error) string {
	var stale *node.StaleEpochError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &stale):
		return "stale epoch, own " + s.printEpoch(stale.Epoch)
	}
	for class, word := range map[error]string{node.ErrNotAdmitted: "not admitted", node.ErrRaced: "raced", node.ErrForeign: "foreign"} {
		if errors.Is(err, class) {
			return word
		}
	}
	return err.Error()
}

// recorder is a server that listens for notifications. It has room for all notifications of a test.
type recorder struct {
	subscribed chan struct{}
	wakes      chan wake
}

type wake struct {
	resource string
	ticket   node.Ticket
}

// Subscribed is called when a subscription begins.
func (r *recorder) Subscribed() {
	select {
	case r.subscribed <- struct{}{}:
	default:
	}
}

// Wake records a notification.
func (r *recorder) Wake(resource string, t node.Ticket) { r.wakes <- wake{resource, t} }

// next returns the next notification; ok is false if none comes.
func (r *recorder) next() (wake, bool) {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case w := <-r.wakes:
		return w, true
	case <-timeout.C:
		return wake{}, false
	}
}

// listen subscribes for a server until the test ends.
func listen(t interface {
	Context() context.Context
	Cleanup(f func())
}, n node.Waker, server string) *recorder {
	r := &recorder{subscribed: make(chan struct{}, 1), wakes: make(chan wake, 10_000)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	done.Go(func() { n.Subscribe(ctx, server, r) })
	t.Cleanup(func() { cancel(); done.Wait() })
	<-r.subscribed
	return r
}
