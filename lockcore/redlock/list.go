package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// listBudget bounds how long one page searches: a node may hold few locks among
// many counters, or few that may be shown. The page is then short, and its cursor
// continues there.
const listBudget = 250 * time.Millisecond

// List returns held locks in the nodes' own order. It asks R nodes one after the
// other, since each held lock stands on at least one of them; a lock that moves
// meanwhile may be missed or shown twice. A page takes a quarter of a second at
// most for the search, and may then be short, or empty, and yet have a NextCursor.
// The cursor is sealed, and good for this owner (WithCaller) and prefix, until
// the cluster's secret has been replaced twice. Errors: *FieldError, *QuorumError.
func (l *Locker) List(ctx context.Context, req lockcore.ListRequest) (lockcore.LockPage, error) {
	if err := lockcore.ValidateText("prefix", req.Prefix, 0); err != nil {
		return lockcore.LockPage{}, err
	}
	if req.Limit < 1 || req.Limit > lockcore.MaxPage {
		return lockcore.LockPage{}, &lockcore.FieldError{Field: "limit", Reason: fmt.Sprintf("must be 1 to %d", lockcore.MaxPage)}
	}
	keys, err := l.sets[0].currentKeys(ctx)
	if err != nil {
		return lockcore.LockPage{}, err
	}
	owner := lockcore.CallerOf(ctx)
	use := strconv.Itoa(len(owner)) + " " + owner + req.Prefix
	w := listing{sets: l.sets, req: req, until: time.Now().Add(listBudget)}
	if w.at, err = openListPlace(keys, use, req.Cursor, l.sets); err != nil {
		return lockcore.LockPage{}, err
	}
	page, err := w.page(ctx)
	if err != nil || w.ended() {
		return page, err
	}
	next := w.at
	if len(page.Locks) < req.Limit || w.more(ctx) {
		page.NextCursor = keys.sealCursor(use, next.String())
	}
	return page, nil
}

// listing is a page in the making.
type listing struct {
	sets  []*set
	req   lockcore.ListRequest
	at    listPlace
	until time.Time
}

func (w *listing) ended() bool { return w.at.set == len(w.sets) }

func (w *listing) page(ctx context.Context) (lockcore.LockPage, error) {
	page := lockcore.LockPage{Locks: []lockcore.LockState{}}
	for !w.ended() && len(page.Locks) < w.req.Limit && time.Now().Before(w.until) {
		l, earlier := w.sets[w.at.set], w.at.reader
		found, readers, err := w.step(ctx, w.req.Limit-len(page.Locks))
		if err != nil {
			return lockcore.LockPage{}, err
		}
		page.Locks = append(page.Locks, l.inspectAll(ctx, found, readers[:earlier])...)
	}
	return page, nil
}

// step asks the reader at the present place for resources, and goes on behind them.
func (w *listing) step(ctx context.Context, limit int) (found []string, readers []node.Node, err error) {
	l := w.sets[w.at.set]
	if readers, err = l.readers(); err != nil {
		return nil, nil, err
	}
	n := readers[w.at.reader]
	found, next, err := n.Scan(ctx, w.req.Prefix, w.at.node, limit)
	if err != nil {
		return nil, nil, l.unreadable(n, err)
	}
	if w.req.Show != nil {
		found = slices.DeleteFunc(found, func(resource string) bool { return !w.req.Show(resource) })
	}
	w.at = w.at.next(next, len(readers))
	return found, readers, nil
}

// more reports whether something may be shown behind a full page, as far as there
// is time to look. Where nothing is hidden the nodes' word that there is more will do.
func (w *listing) more(ctx context.Context) bool {
	const many = 100
	for w.req.Show != nil && !w.ended() && time.Now().Before(w.until) {
		if found, _, err := w.step(ctx, many); err != nil || len(found) > 0 {
			return true // an error is for the next page to tell
		}
	}
	return !w.ended()
}

// readers returns the first R nodes that may vote.
func (l *set) readers() (readers []node.Node, err error) {
	status := l.members.Status()
	for i, n := range l.nodes {
		if status.Nodes[i].State == lockcore.NodeVoting && len(readers) < quorum.Readers(len(l.nodes)) {
			readers = append(readers, n)
		}
	}
	if len(readers) < quorum.Readers(len(l.nodes)) {
		b := ballot{n: len(l.nodes), quorum: l.quorum}
		for i := range status.Nodes {
			b.answered |= only(i)
			b.replies[i] = node.Reply{Outcome: node.Failed, Err: fmt.Errorf("%s %s", status.Nodes[i].State, status.Nodes[i].Reason)}
		}
		return nil, l.quorumError("", &b)
	}
	return readers, nil
}

func (l *set) unreadable(n node.Node, err error) error {
	return &lockcore.QuorumError{
		Quorum: l.quorum, Nodes: []lockcore.NodeOutcome{{Node: n.Name(), Reason: err.Error()}}, RetryAfter: time.Second,
	}
}

// inspectAll looks at the resources side by side and keeps those that are held
// and were not already found on an earlier reader.
func (l *set) inspectAll(ctx context.Context, resources []string, earlier []node.Node) []lockcore.LockState {
	states := make([]lockcore.LockState, len(resources))
	var wg sync.WaitGroup
	for i, resource := range resources {
		wg.Go(func() {
			b, err := l.look(ctx, resource, func(*ballot) bool { return false })
			if state, owner := b.lockState(resource); err == nil && !l.isHeld(&b, owner, earlier) {
				states[i] = state
			}
		})
	}
	wg.Wait()
	held := states[:0]
	for _, s := range states {
		if s.Held {
			held = append(held, s)
		}
	}
	return held
}

// stands reports whether one of the nodes has a lock of the owner.
func (l *set) isHeld(b *ballot, owner string, nodes []node.Node) bool {
	for i, n := range l.nodes {
		for _, e := range nodes {
			if n == e && b.answered.has(i) && b.replies[i].Owner == owner {
				return true
			}
		}
	}
	return false
}

// listPlace is where a listing stands: in which set, at which reader, and that
// reader's own cursor.
type listPlace struct {
	set, reader int
	node        string
}

// next is behind what the reader gave, where it may have more at the cursor node.
func (p listPlace) next(node string, readers int) listPlace {
	switch {
	case node != "":
		return listPlace{set: p.set, reader: p.reader, node: node}
	case p.reader+1 < readers:
		return listPlace{set: p.set, reader: p.reader + 1}
	}
	return listPlace{set: p.set + 1}
}

// listPlaceBytes is the length of a place as text: a node's cursor may have the
// length of a name in it, which is nobody's to know.
const listPlaceBytes = 512

func (p listPlace) String() string {
	text := strconv.Itoa(p.set) + " " + strconv.Itoa(p.reader) + " " + p.node
	return text + strings.Repeat("\x00", max(0, listPlaceBytes-len(text)))
}

func (p listPlace) within(sets []*set) bool {
	return 0 <= p.set && p.set < len(sets) && 0 <= p.reader && p.reader < quorum.Readers(len(sets[p.set].nodes))
}

func openListPlace(keys *Keys, use, cursor string, sets []*set) (p listPlace, err error) {
	if cursor == "" {
		return p, nil
	}
	text, ok := keys.openCursor(use, cursor)
	set, rest, _ := strings.Cut(text, " ")
	reader, node, _ := strings.Cut(rest, " ")
	var errSet, errReader error
	p.set, errSet = strconv.Atoi(set)
	p.reader, errReader = strconv.Atoi(reader)
	p.node = strings.TrimRight(node, "\x00")
	if !ok || errSet != nil || errReader != nil || !p.within(sets) {
		return p, &lockcore.FieldError{Field: "cursor", Reason: "must be the next_cursor of an earlier page of the same list"}
	}
	return p, nil
}
