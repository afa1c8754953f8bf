package sets

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// listBudget bounds how long one page searches: a node may have few locks among many counters, or few that may
// be shown.
const listBudget = 250 * time.Millisecond

// List implements lockcore.Service, in the nodes' own order. It reads R nodes one after the other, since at
// least one of them has each held lock. It may miss a lock that moves in the meantime, or show it twice. A
// page searches for at most a quarter of a second. It may then be short or empty and still have a NextCursor.
// The cursor is sealed for this caller and prefix, and valid until the cluster's secret has been replaced
// twice.
func (l *Locker) List(ctx context.Context, req lockcore.ListRequest) (lockcore.LockPage, error) {
	if !req.Caller.Valid() {
		return lockcore.LockPage{}, lockcore.ErrNoCaller
	}
	if err := lockcore.ValidateText("prefix", req.Prefix, 0); err != nil {
		return lockcore.LockPage{}, err
	}
	if req.Limit < 1 || req.Limit > lockcore.MaxPage {
		return lockcore.LockPage{}, &lockcore.FieldError{Field: "limit", Reason: fmt.Sprintf("must be 1 to %d", lockcore.MaxPage)}
	}
	ring, err := l.router.sets[0].CurrentRing(ctx)
	if err != nil {
		return lockcore.LockPage{}, err
	}
	caller := req.Caller.Name()
	use := strconv.Itoa(len(caller)) + " " + caller + req.Prefix
	w := listing{sets: l.router.sets, router: l.router, req: req, until: time.Now().Add(listBudget)}
	if w.at, err = openListPlace(ring, use, req.Cursor, l.router.sets); err != nil {
		return lockcore.LockPage{}, err
	}
	page, err := w.page(ctx)
	if err != nil || w.ended() {
		return page, err
	}
	next := w.at
	if len(page.Locks) < req.Limit || w.more(ctx) {
		page.NextCursor = ring.SealCursor(use, next.String())
	}
	return page, nil
}

// listing is the state of one List.
type listing struct {
	sets   []*set
	router *router
	req    lockcore.ListRequest
	at     listPlace
	until  time.Time
}

func (w *listing) ended() bool { return w.at.set == len(w.sets) }

func (w *listing) page(ctx context.Context) (lockcore.LockPage, error) {
	page := lockcore.LockPage{Locks: []lockcore.LockState{}}
	for !w.ended() && len(page.Locks) < w.req.Limit && time.Now().Before(w.until) {
		s, earlier := w.sets[w.at.set], w.at.reader
		found, readers, err := w.step(ctx, w.req.Limit-len(page.Locks))
		if err != nil {
			return lockcore.LockPage{}, err
		}
		locks, err := s.Now().InspectAll(ctx, found, readers[:min(earlier, len(readers))])
		if err != nil {
			return lockcore.LockPage{}, err
		}
		page.Locks = append(page.Locks, locks...)
	}
	return page, nil
}

// step scans the reader at the present place, and advances the place.
func (w *listing) step(ctx context.Context, limit int) (found []string, readers []int, err error) {
	s := w.sets[w.at.set]
	mapped := s.Now()
	if !w.router.serves(s) {
		w.at = listPlace{set: w.at.set + 1}
		return nil, nil, nil
	}
	if readers, err = s.Readers(ctx); err != nil {
		return nil, nil, err
	}
	reader := s.Nodes()[readers[w.at.reader]]
	found, next, err := reader.Scan(ctx, w.req.Prefix, w.at.node, limit)
	if err != nil {
		failed := lockcore.NodeOutcome{Node: reader.Name(), Reason: err.Error()}
		return nil, nil, &lockcore.QuorumError{Quorum: quorum.Of(len(s.Nodes())), Nodes: []lockcore.NodeOutcome{failed}, RetryAfter: time.Second}
	}
	if len(w.sets) > 1 { // a resource that has moved leaves its locks behind for their TTL
		found = slices.DeleteFunc(found, func(resource string) bool { return w.router.of(resource) != mapped })
	}
	if w.req.Show != nil {
		found = slices.DeleteFunc(found, func(resource string) bool { return !w.req.Show(resource) })
	}
	w.at = w.at.next(next, len(readers))
	return found, readers, nil
}

// more reports whether the next page may show something, as far as the time permits a search. If nothing is
// hidden, a node's cursor is enough.
func (w *listing) more(ctx context.Context) bool {
	const limit = 100
	for w.req.Show != nil && !w.ended() && time.Now().Before(w.until) {
		if found, _, err := w.step(ctx, limit); err != nil || len(found) > 0 {
			return true // the next page returns the error
		}
	}
	return !w.ended()
}

// listPlace is the position of a listing: the set, the reader, and the reader's own
// cursor.
type listPlace struct {
	set, reader int
	node        string
}

// next returns the position after a scan; node is the node's cursor, "" at its end.
func (p listPlace) next(node string, readers int) listPlace {
	switch {
	case node != "":
		return listPlace{set: p.set, reader: p.reader, node: node}
	case p.reader+1 < readers:
		return listPlace{set: p.set, reader: p.reader + 1}
	}
	return listPlace{set: p.set + 1}
}

// listPlaceBytes is the length of a place as text. It is always the same, since the length of a node's cursor
// might reveal the length of a hidden name.
const listPlaceBytes = 512

func (p listPlace) String() string {
	text := strconv.Itoa(p.set) + " " + strconv.Itoa(p.reader) + " " + p.node
	return text + strings.Repeat("\x00", max(0, listPlaceBytes-len(text)))
}

func (p listPlace) within(sets []*set) bool {
	return 0 <= p.set && p.set < len(sets) && 0 <= p.reader && p.reader < quorum.Readers(len(sets[p.set].Nodes()))
}

func openListPlace(ring *keyring.Ring, use, cursor string, sets []*set) (p listPlace, err error) {
	if cursor == "" {
		return p, nil
	}
	text, ok := ring.OpenCursor(use, cursor)
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
