package stand

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

func TestScopeEndsTheYoungestFirst(t *testing.T) {
	s := NewScope("test", io.Discard)
	var order []int
	for i := range 3 {
		s.Cleanup(func() { order = append(order, i) })
	}
	s.Close()
	s.Close()
	if len(order) != 3 || order[0] != 2 || order[2] != 0 {
		t.Errorf("got %v", order)
	}
}

func TestGuard(t *testing.T) {
	s := NewScope("test", io.Discard)
	err := Guard(func() error {
		s.Fatalf("no %s", "luck")
		return nil
	})
	if err == nil || err.Error() != "test: no luck" || !s.Failed() {
		t.Errorf("got %v", err)
	}
	plain := errors.New("plain")
	if err := Guard(func() error { return plain }); !errors.Is(err, plain) {
		t.Errorf("got %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a foreign panic was swallowed")
		}
	}()
	_ = Guard(func() error { panic("foreign") })
}

func TestListenAddr(t *testing.T) {
	if got, err := listenAddr(`{"msg":"listening","addr":"127.0.0.1:1"}` + "\n{}"); err != nil || got != "127.0.0.1:1" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, log := range []string{"", `{"addr":"half`, "text\n", "{}\n"} {
		if got, err := listenAddr(log); err == nil {
			t.Errorf("%q: %q", log, got)
		}
	}
}

func TestRedis(t *testing.T) {
	s := NewScope("test", io.Discard)
	defer s.Close()
	r, err := StartRedis(t.Context(), s, 2, testenv.PersistNone)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Addrs()) != 2 || r.CPU() == 0 || len(r.URLs(3)) != 2 {
		t.Errorf("%v, cpu %v", r.Addrs(), r.CPU())
	}
}

func TestProgramThatEnds(t *testing.T) {
	s := NewScope("test", io.Discard)
	defer s.Close()
	p, err := startProgram(s, "sh", nil, "-c", "echo last words; exit 1")
	if err != nil {
		t.Fatal(err)
	}
	err = p.await(t.Context(), func(context.Context) error { return errors.New("never") })
	if err == nil || !strings.Contains(err.Error(), "last words") {
		t.Errorf("got %v", err)
	}
}
