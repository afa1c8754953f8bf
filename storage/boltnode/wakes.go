package boltnode

import (
	"context"
	"sync"

	"github.com/fencelock/fencelock/lockcore"
)

// subscribers are who is told that a ticket's turn has come.
type subscribers struct {
	mu       sync.Mutex
	next     int
	byServer map[string]map[int]lockcore.Wakes
}

// turn says whose turn it is.
type turn struct {
	resource string
	ticket   lockcore.Ticket
}

func (s *subscribers) add(server string, w lockcore.Wakes) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byServer == nil {
		s.byServer = make(map[string]map[int]lockcore.Wakes)
	}
	if s.byServer[server] == nil {
		s.byServer[server] = make(map[int]lockcore.Wakes)
	}
	s.next++
	id := s.next
	s.byServer[server][id] = w
	return func() { s.remove(server, id) }
}

func (s *subscribers) remove(server string, id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byServer[server], id)
	if len(s.byServer[server]) == 0 {
		delete(s.byServer, server)
	}
}

func (s *subscribers) tell(turns []turn) {
	if len(turns) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, turn := range turns {
		for _, w := range s.byServer[turn.ticket.Server] {
			w.Turn(turn.resource, turn.ticket)
		}
	}
}

// Wakes calls w until ctx ends.
func (n *Node) Wakes(ctx context.Context, server string, w lockcore.Wakes) {
	remove := n.wakes.add(server, w)
	defer remove()
	w.Subscribed()
	<-ctx.Done()
}
