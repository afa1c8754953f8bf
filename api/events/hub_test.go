package events

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

func all(*Event) bool { return true }

func granted(resource string, token int64) Event {
	return Event{Kind: wire.EventGranted, Event: wire.Event{Resource: resource, FencingToken: token, TTLMS: 30_000}}
}

// running runs f until the test's bubble is to end.
func running(t *testing.T, fs ...func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(func() { _ = f(ctx) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// While nobody listens, a few events a second are kept, and a gap for the others.
func TestIdleHubKeepsFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub()
		stop := running(t, h.Run)
		defer stop()
		kept := 0
		for i := range int64(2000) {
			if h.Recording() {
				h.Publish(granted("a", i))
				kept++
			}
		}
		if kept != idleBudget {
			t.Errorf("%d events were kept, want %d", kept, idleBudget)
		}
		time.Sleep(1100 * time.Millisecond)
		h.Publish(granted("b", 1))
		r, err := h.Listen("", true)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		r.Rewind(2, all)
		list, missed, _ := r.Next(nil, 10, all)
		if len(list) != 2 || missed != 0 || list[0].Kind != wire.EventGap || list[1].Resource != "b" {
			t.Errorf("missed %d, %+v", missed, list)
		}
		for i := range int64(2000) { // now everything is
			h.Publish(granted("c", i))
		}
		if list, _, _ = r.Next(nil, 1000, all); len(list) != 1000 || list[999].FencingToken != 999 {
			t.Errorf("%d events", len(list))
		}
		r.Close()
		time.Sleep(2 * linger)
		if h.Listened() {
			t.Error("it goes on although nobody listens")
		}
	})
}

// network is the channels' node.
type network struct {
	mu    sync.Mutex
	heard map[string][]func(string)
	words map[string]int
	down  bool
}

func (n *network) Tell(_ context.Context, topic, word string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.words[topic]++
	if !n.down {
		for _, heard := range n.heard[topic] {
			heard(word)
		}
	}
	return nil
}

func (n *network) Hear(ctx context.Context, topic string, heard func(string)) {
	n.mu.Lock()
	n.heard[topic] = append(n.heard[topic], heard)
	n.mu.Unlock()
	<-ctx.Done()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard[topic] = nil // one server at a time listens in these tests
}

func (n *network) said(topic string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.words[topic]
}

func newNetwork() *network {
	return &network{heard: make(map[string][]func(string)), words: make(map[string]int)}
}

func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := NewHub(), NewHub()
		nets := []*network{newNetwork(), newNetwork(), newNetwork()}
		nets[1].down = true
		channels := []Channel{nets[0], nets[1], nets[2]}
		seals := newSeals("of the cluster")
		stop := running(t, one.Run, two.Run, NewRelay(one, channels, seals, slog.Default()).Run, NewRelay(two, channels, seals, slog.Default()).Run)
		defer stop()
		for i := range int64(50) {
			two.Publish(granted("before", i))
		}
		time.Sleep(10 * time.Second)
		compared := nets[0].said(topicListen) // the lease keys, once at the start
		time.Sleep(time.Hour)
		if n := nets[0].said(topicEvents) + nets[0].said(topicListen) - compared; n != 0 || compared != 4 {
			t.Errorf("%d words although nobody listens, after %d about lease keys", n, compared)
		}

		r, err := one.Listen("", true)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		two.Publish(granted("a", 1))
		two.Publish(Event{Kind: wire.EventNode, Event: wire.Event{Node: "n"}}) // one sees the nodes for itself
		time.Sleep(time.Second / 2)
		one.Publish(granted("own", 1))
		two.Expired([]lockcore.LeasePart{{Resource: "a", Token: 1}})
		time.Sleep(time.Second / 2)
		list, _, _ := r.Next(nil, 100, all)
		if len(list) != 3 || list[0].Resource != "a" || list[0].Server != two.server || list[1].Resource != "own" || list[2].Kind != wire.EventExpired || list[2].FencingToken != 1 {
			t.Errorf("heard %+v", list)
		}

		for i := range int64(2*maxBatch + 100) { // more than is passed on at once, and again
			two.Publish(granted("many", i))
		}
		time.Sleep(time.Second / 2)
		list, _, _ = r.Next(nil, 3*maxBatch, all)
		missed := int64(0) // the batches may begin in the middle of it
		for _, e := range list {
			missed += int64(e.Missed)
		}
		if missed == 0 || missed+int64(len(list)) < 2*maxBatch+100 {
			t.Errorf("%d events, and %d missed", len(list), missed)
		}

		r.Close()
		time.Sleep(linger + 2*listenedFor)
		before := nets[0].said(topicEvents)
		two.Publish(granted("after", 1))
		time.Sleep(time.Second)
		if nets[0].said(topicEvents) != before || two.Listened() {
			t.Error("it goes on although nobody listens")
		}
	})
}

// What comes over a channel is not believed to be well-formed.
func TestRelayOfNonsense(t *testing.T) {
	h := NewHub()
	seals := newSeals("of the cluster")
	relay := NewRelay(h, nil, seals, slog.Default())
	r, err := h.Listen("", true)
	if err != nil {
		t.Fatal(err)
	}
	sent := `"sent":` + strconv.FormatInt(time.Now().UnixMilli(), 10)
	for i, word := range []string{
		"", "{", "[]", `{"server":"` + h.server + `","number":1,"events":[{"kind":"granted","resource":"a"}]}`,
		`{"server":"x","number":NUMBER,"events":[{"kind":"node","node":"n"}]}`,
		`{"server":"x","number":NUMBER,"events":[{"kind":"granted","resource":""}]}`,
		`{"server":"x","number":NUMBER,"events":[{"kind":"granted","resource":"a\u0000"}]}`,
		`{"server":"0123456789012345678901234567890123456789","number":1,"events":[{"kind":"granted","resource":"a"}]}`,
	} {
		relay.hear(seals.sealed(strings.ReplaceAll(word, "NUMBER", strconv.Itoa(i)+","+sent)))
		if list, _, _ := r.Next(nil, 10, all); len(list) > 0 {
			t.Errorf("word %d became %+v", i, list)
		}
	}
	for _, number := range []uint64{5, 5, 3, 3, 100, 99, 99, 36, 5, 1 << 60} {
		relay.hear(seals.sealed(`{"server":"y",` + sent + `,"number":` + strconv.FormatUint(number, 10) + `,"events":[{"kind":"granted","resource":"a","reason":"r","fencing_token":` + strconv.FormatUint(number, 10) + `}]}`))
	}
	list, _, _ := r.Next(nil, 20, all)
	var tokens []int64
	for _, e := range list {
		tokens = append(tokens, e.FencingToken)
		if e.Reason != "" {
			t.Errorf("%+v", e)
		}
	}
	if want := []int64{5, 3, 100, 99, 36, 1 << 60}; !slices.Equal(tokens, want) {
		t.Errorf("tokens %v, want %v", tokens, want)
	}
}

// The states of the nodes are compared while there is a reader.
func TestNodesAreWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		looks, state := 0, lockcore.NodeVoting
		status := func() lockcore.ClusterStatus {
			mu.Lock()
			defer mu.Unlock()
			looks++
			return lockcore.ClusterStatus{Nodes: []lockcore.NodeStatus{{Name: "n1", State: state}, {Name: "n2", State: lockcore.NodeVoting}}}
		}
		set := func(to lockcore.NodeState) (looked int) {
			mu.Lock()
			defer mu.Unlock()
			state = to
			return looks
		}
		h := NewHub()
		stop := running(t, h.Run, func(ctx context.Context) error { return h.WatchNodes(ctx, status) })
		defer stop()
		time.Sleep(time.Minute)
		if set(lockcore.NodeQuarantined) != 0 {
			t.Error("it looks although nobody listens")
		}
		r, err := h.Listen("", true)
		if err != nil {
			t.Fatal(err)
		}
		tells := func(want string) {
			t.Helper()
			time.Sleep(time.Second)
			list, _, _ := r.Next(nil, 100, all)
			var told []string
			for _, e := range list {
				told = append(told, fmt.Sprintf("%s %s: %s, was %s", e.Kind, e.Node, e.State, e.Was))
			}
			if got := strings.Join(told, "; "); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		tells("")
		set(lockcore.NodeUnreachable)
		tells("node n1: unreachable, was quarantined")
		r.Close()
		time.Sleep(2 * linger)
		before := set(lockcore.NodeVoting)
		time.Sleep(time.Minute)
		if set(lockcore.NodeVoting) != before {
			t.Error("it still looks although nobody listens")
		}
	})
}

// BenchmarkPublish is what an acquire pays: nothing to speak of while nobody listens.
func BenchmarkPublish(b *testing.B) {
	b.Run("idle", func(b *testing.B) {
		h := NewHub()
		for b.Loop() {
			if h.Recording() {
				h.Publish(granted("orders/42", 1))
			}
		}
	})
	b.Run("listened", func(b *testing.B) {
		h := NewHub()
		r, err := h.Listen("", true)
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		for b.Loop() {
			if h.Recording() {
				h.Publish(granted("orders/42", 1))
			}
		}
	})
}
