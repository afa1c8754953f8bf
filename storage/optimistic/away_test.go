package optimistic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// A commit whose reply is lost may have taken effect or not. The store finds out which.
func TestLostAnswers(t *testing.T) {
	service := newMemory()
	s := open(t, service)
	put(t, s, "k", "1")
	service.lost = errBroken
	err := s.Update(t.Context(), func(tx replica.Tx) error { tx.Put("k", []byte("2"), 0); return nil })
	if !errors.Is(err, errBroken) {
		t.Errorf("the error is %v", err)
	}
	update(t, s, func(tx replica.Tx) {
		raw, _ := tx.Get("k")
		tx.Put("k", append(raw, '+'), 0)
	})
	if got := get(t, s, "k"); got != "2+" {
		t.Errorf("the row is %q", got)
	}
}

// A service that went back to an earlier state is another life. The server forgets what it has seen of the former
// life.
func TestAServiceThatGoesBack(t *testing.T) {
	for name, again := range map[string]bool{"it stands still": false, "it comes to the same version": true} {
		t.Run(name, func(t *testing.T) {
			service := newMemory()
			a, b := open(t, service), open(t, service)
			put(t, a, "k", "1")
			before := service.save()
			life := status(t, a)
			put(t, a, "k", "2")
			put(t, a, "k", "3")
			service.restore(before)
			if again {
				put(t, b, "k", "4")
			}
			update(t, a, func(tx replica.Tx) {
				raw, _ := tx.Get("k")
				tx.Put("k", append(raw, '+'), 0)
			})
			want := map[bool]string{false: "1+", true: "4+"}[again]
			if got := get(t, b, "k"); got != want {
				t.Errorf("the row is %q, want %q", got, want)
			}
			if now := status(t, a); now == life || now != status(t, b) {
				t.Errorf("the incarnations are %v, %v, and before %v", now, status(t, b), life)
			}
			if young, err := a.Young(t.Context()); young || err != nil {
				t.Errorf("young: %t, %v", young, err)
			}
		})
	}
}

// The loss of a commit is also noticed if the commit got its reply while the copy was loaded again.
func TestALossWithoutACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newMemory()
		s := New(service, Options{})
		put(t, s, "k", "1")
		life, before := status(t, s), service.save()
		service.before = func(*Commit) { s.loadAgain(); synctest.Wait() }
		put(t, s, "k", "2")
		service.restore(before)
		if status(t, s) == life {
			t.Error("it was not noticed")
		}
		_ = s.Close()
	})
}

// The loss of a commit is remembered if the copy is loaded again before another life has begun.
func TestALossIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := newMemory()
		s := New(service, Options{})
		put(t, s, "k", "1")
		life, before := status(t, s), service.save()
		put(t, s, "k", "2")
		service.restore(before)
		for range 2 {
			s.loadAgain()
			time.Sleep(time.Minute)
		}
		if status(t, s) == life {
			t.Error("it was forgotten")
		}
		_ = s.Close()
	})
}

// Running servers and those that start notice what was removed by hand. Another life begins, which is not young, and
// no row of a log with a gap is in it.
func TestWhatIsMissing(t *testing.T) {
	for name, remove := range map[string]func(*memory, *head){
		"the first entry": func(s *memory, h *head) { s.remove(h.first, h.first) },
		"the last entry":  func(s *memory, h *head) { s.remove(h.last, h.last) },
		"one between":     func(s *memory, h *head) { s.remove(h.first+1, h.first+1) },
		"all entries":     func(s *memory, h *head) { s.remove(h.first, h.last) },
		"the head":        func(s *memory, _ *head) { s.removeHead() },
		"everything":      func(s *memory, h *head) { s.removeHead(); s.remove(h.first, h.last) },
	} {
		for _, runs := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, a server runs: %t", name, runs), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					service := newMemory()
					s := New(service, Options{})
					for _, key := range []string{"a", "b", "c"} {
						put(t, s, key, "1")
					}
					life := status(t, s)
					now, _ := s.loaded(t.Context())
					if !runs {
						_ = s.Close()
					}
					remove(service, &now.head)
					synctest.Wait()
					if !runs {
						s = New(service, Options{})
					}
					other := New(service, Options{})
					for _, server := range []*Store{s, other} {
						if status(t, server) == life || get(t, server, "a") != "" || get(t, server, "c") != "" {
							t.Errorf("it is not missed: rows %q and %q", get(t, server, "a"), get(t, server, "c"))
						}
						unseen := name == "everything" && !runs // nothing tells it from a new place
						if young, err := server.Young(t.Context()); young != unseen || err != nil {
							t.Errorf("young: %t, %v", young, err)
						}
					}
					after := status(t, s)
					put(t, s, "d", "2")
					third := New(service, Options{})
					if status(t, third) != after || get(t, third, "d") != "2" {
						t.Error("it is missed a second time")
					}
					_, _, _ = s.Close(), other.Close(), third.Close()
				})
			})
		}
	}
}

// Everything was deleted. A server that starts then takes the place for a new one. Servers that saw the earlier rows
// know better, and another life begins.
func TestALifeThatKnowsNothing(t *testing.T) {
	for name, follows := range map[string]bool{"seen at once": true, "seen when all is read again": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				service := newMemory()
				s := New(service, Options{})
				put(t, s, "k", "1")
				now, _ := s.loaded(t.Context())
				if !follows {
					service.mu.Lock()
					service.lag = make(chan struct{})
					service.mu.Unlock()
				}
				service.removeHead()
				service.remove(now.head.first, now.head.last)
				other := New(&member{memory: service}, Options{})
				if young, err := other.Young(t.Context()); !young && !follows || err != nil {
					t.Errorf("young: %t, %v", young, err)
				}
				began := status(t, other)
				if !follows {
					close(service.lag)
					s.loadAgain()
				}
				synctest.Wait()
				known := status(t, s)
				if known != status(t, other) || !follows && known == began {
					t.Errorf("the incarnations are %v and %v, and before %v", known, status(t, other), began)
				}
				if young, err := other.Young(t.Context()); young || err != nil {
					t.Errorf("then young: %t, %v", young, err)
				}
				_, _ = s.Close(), other.Close()
			})
		})
	}
}

// readWhile makes the copy read everything. When it returns, everything was read, but the copy gets it only after
// what the caller does next.
func (s *Store) readWhile(service *memory) {
	read := make(chan struct{})
	service.mu.Lock()
	service.read = func() { close(read); synctest.Wait() }
	service.mu.Unlock()
	s.loadAgain()
	<-read
}

// While the service is down, no call waits longer than its time limit.
func TestAServiceThatIsNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(dead{}, Options{})
		defer s.Close()
		for _, call := range []func(context.Context, func(replica.Tx) error) error{s.Update, s.View} {
			began := time.Now()
			err := call(t.Context(), func(replica.Tx) error { return nil })
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*time.Second {
				t.Errorf("%v after %s", err, time.Since(began))
			}
		}
	})
}

type dead struct{}

func (dead) Follow(context.Context, *Mirror) error { return errBroken }

func (dead) Commit(context.Context, *Commit) (int64, error) { return 0, errBroken }

func (dead) Claim(context.Context, string) error { return errBroken }

func (dead) Head(context.Context) (string, int64, error) { return "", 0, errBroken }

// silent is a service that never sends its rows.
type silent struct{ *memory }

func (silent) Follow(ctx context.Context, _ *Mirror) error {
	<-ctx.Done()
	return ctx.Err()
}

// The error names a service that is down, and not what this store waits for.
func TestAServiceThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := New(silent{newMemory()}, Options{})
		defer func() { _ = s.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.loaded(ctx)
		if want := "check that it runs, that it has a majority"; err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want %q", err, want)
		}
	})
}
