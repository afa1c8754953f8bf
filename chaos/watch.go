package chaos

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/vacancy"
)

// startWatch looks at every resource that clients compete for, until the context ends.
func (s *Stand) startWatch(ctx context.Context) *vacancy.Watch {
	return vacancy.Start(ctx, s.contested(), vacancy.Asked{
		Servers: len(s.servers), Within: 300 * time.Millisecond, Now: s.now,
		Lock: func(ctx context.Context, server int, name string) (lock wire.Lock, ok bool) {
			a := s.send(ctx, server, request{method: http.MethodGet, path: "/locks/" + url.PathEscape(name)})
			a.into(&lock)
			return lock, a.status == http.StatusOK
		},
	})
}

// contested are the resources that clients compete for.
func (s *Stand) contested() (names []string) {
	for i := range s.config.Resources {
		names = append(names, s.resource(i))
	}
	return slices.Concat(names, slotNames())
}
