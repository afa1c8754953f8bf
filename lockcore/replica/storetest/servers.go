package storetest

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// notifiesOther: what one server commits notifies another, whatever the names are made of.
func (s *suite) notifiesOther() {
	if s.Beside == nil {
		return
	}
	heard, beside := s.listen("A"), s.Beside()
	notify := func(resource string, ticket node.Ticket) {
		s.Helper()
		s.must(beside.Update(s.Context(), func(tx replica.Tx) error {
			tx.Put("note", []byte(resource), time.Minute)
			tx.Notify(resource, ticket)
			return nil
		}))
	}
	s.until("notifications reach the other server", func() bool {
		notify("early", node.Ticket{ID: "t", Server: "A"}) // it may not hear this one yet
		turns, _ := heard.heard()
		return len(turns) > 0
	})
	ticket := node.Ticket{ID: "t'1", Server: "A", Holder: "an ünusual\n'holder' \x00\xff"}
	notify("a b\nc", node.Ticket{ID: "t", Server: "B"})
	notify("a b\nc", ticket)
	notify("last", node.Ticket{ID: "t", Server: "A"})
	var turns []string
	s.until("the last notification is heard", func() bool {
		turns, _ = heard.heard()
		return slices.Contains(turns, "last t A ")
	})
	turns = slices.DeleteFunc(slices.Clone(turns), func(turn string) bool { return turn == "early t A " || turn == "last t A " })
	if want := "a b\nc t'1 A " + ticket.Holder; len(turns) != 1 || turns[0] != want {
		s.Errorf("heard %q, want %q once", turns, want)
	}
}

// teller is a store by which servers send messages to one another.
type teller interface {
	Tell(ctx context.Context, topic, message string) error
	Hear(ctx context.Context, topic string, heard func(message string))
}

// messages: messages between servers come whole, in order, and whatever their length.
func (s *suite) messages() {
	hearing, tells := s.Store.(teller)
	if !tells || s.Beside == nil {
		return
	}
	telling := s.Beside().(teller) //nolint:errcheck,forcetypeassert // it is of the same type
	ctx, cancel := context.WithCancel(s.Context())
	var mu sync.Mutex
	var heard []string
	var done sync.WaitGroup
	done.Go(func() {
		hearing.Hear(ctx, "topic", func(message string) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, message)
		})
	})
	defer done.Wait()
	defer cancel()
	const early = "early"
	s.until("messages are heard", func() bool {
		s.must(telling.Tell(s.Context(), "topic", early)) // it may not hear this one yet
		mu.Lock()
		defer mu.Unlock()
		return len(heard) > 0
	})
	if s.Noise != nil {
		s.Noise("topic")
	}
	want := []string{"", "ünicode\n", strings.Repeat("0123456789", cmp.Or(s.Message, 1_000_000)/10), "last"}
	for _, message := range want {
		s.must(telling.Tell(s.Context(), "topic", message))
	}
	s.until("the last message is heard", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(heard, "last")
	})
	mu.Lock()
	defer mu.Unlock()
	late := slices.DeleteFunc(heard, func(message string) bool { return message == early })
	if !slices.Equal(late, want) {
		s.Errorf("heard %d messages, want %d: they came cut, twice or in another order", len(late), len(want))
	}
}
