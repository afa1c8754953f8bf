package cpu

import (
	"os"
	"testing"
	"time"
)

func TestOwnTimeGrows(t *testing.T) {
	self, process := Self(), Process(os.Getpid())
	for deadline := time.Now().Add(10 * time.Second); Self() < self+20*time.Millisecond; {
		if time.Now().After(deadline) {
			t.Fatal("no processor time counted")
		}
	}
	if grown := Process(os.Getpid()) - process; grown < 10*time.Millisecond {
		t.Errorf("Process saw %v of 20ms", grown)
	}
}

func TestNobodysTimeIsNone(t *testing.T) {
	if got := Process(1 << 30); got != 0 {
		t.Errorf("got %v", got)
	}
}

func TestParentWithAnyName(t *testing.T) {
	for _, stat := range []string{"12 (redis-server) S 34 1 1", "12 (a) b) (c) S 34 1 1"} {
		if got, err := parseParent([]byte(stat)); err != nil || got != 34 {
			t.Errorf("%q: %d, %v", stat, got, err)
		}
	}
	for _, stat := range []string{"", "12 (x", "12 (x) S"} {
		if got, err := parseParent([]byte(stat)); err == nil {
			t.Errorf("%q: %d, want an error", stat, got)
		}
	}
	if got, err := Parent(os.Getpid()); err != nil || got != os.Getppid() {
		t.Errorf("got %d, %v; want %d", got, err, os.Getppid())
	}
}

func TestMachine(t *testing.T) {
	got, err := parseMachine("cpu  1 2 3 1000 2000 4 5 6 0 0")
	if want := 21 * tick; err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, line := range []string{"", "cpu 1 2", "cpu a b c d e f g h i"} {
		if got, err := parseMachine(line); err == nil {
			t.Errorf("%q: %v, want an error", line, got)
		}
	}
	if busy, err := Machine(); err != nil || busy <= 0 {
		t.Errorf("Machine() = %v, %v", busy, err)
	}
}
