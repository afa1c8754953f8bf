package storetest

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// servers returns two stores on the same data, or one if the store does not allow two.
func (s *suite) servers() (first, second replica.Store) {
	if s.Beside == nil {
		return s.Store, s.Store
	}
	return s.Store, s.Beside()
}

func (s *suite) serialised() {
	const workers, each = 8, 25
	first, second := s.servers()
	var all sync.WaitGroup
	for i := range workers {
		store := first
		if i%2 == 1 {
			store = second
		}
		all.Go(func() {
			for range each {
				err := store.Update(s.Context(), func(tx replica.Tx) error {
					raw, _ := tx.Get("n")
					n, _ := strconv.Atoi(string(raw))
					tx.Put("n", []byte(strconv.Itoa(n+1)), time.Hour)
					return nil
				})
				if err != nil {
					s.Error(err)
				}
			}
		})
	}
	all.Wait()
	s.want("n", strconv.Itoa(workers*each))
}

// writeSkew: transactions of two kinds each take what the other kind has left, so together they must never
// take the same thing twice.
func (s *suite) writeSkew() {
	const rounds = 25
	first, second := s.servers()
	for round := range rounds {
		a, b := fmt.Sprintf("a%d", round), fmt.Sprintf("b%d", round)
		var both sync.WaitGroup
		for _, take := range []struct {
			from        replica.Store
			mine, other string
		}{{first, a, b}, {second, b, a}} {
			both.Go(func() {
				err := take.from.Update(s.Context(), func(tx replica.Tx) error {
					if raw, _ := tx.Get(take.other); raw == nil {
						tx.Put(take.mine, []byte("taken"), time.Hour)
					}
					return nil
				})
				if err != nil {
					s.Error(err)
				}
			})
		}
		both.Wait()
		_, _, takenA := s.get(a)
		_, _, takenB := s.get(b)
		if takenA == takenB {
			s.Errorf("round %d: taken by the first: %t, by the second: %t", round, takenA, takenB)
		}
	}
}
