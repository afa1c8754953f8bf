package api

import (
	"testing"
	"testing/synctest"
	"time"
)

// A goroutine of the crew does the next operation, and ends when none comes.
func TestCrewKeepsItsGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := make(crew)
		done := 0
		for range 2 {
			c.run(func() { done++ })
			synctest.Wait()
		}
		hold := make(chan struct{})
		select {
		case c <- func() { <-hold }:
		default:
			t.Error("no goroutine was kept")
		}
		synctest.Wait()
		select {
		case c <- func() {}:
			t.Error("the second operation had a goroutine of its own")
		default:
		}
		close(hold)
		synctest.Wait()
		if done != 2 {
			t.Errorf("%d operations were done", done)
		}
		time.Sleep(idleFor)
		synctest.Wait()
		select {
		case c <- func() {}:
			t.Error("a goroutine was kept for longer")
		default:
		}
	})
}
