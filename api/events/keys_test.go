package events

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// leaseKeys are a server's file, the sealing key first.
type leaseKeys struct {
	plainSeals
	mu    sync.Mutex
	names []string
}

func (k *leaseKeys) set(names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.names = names
}

func (k *leaseKeys) LeaseKey() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.names) == 0 {
		return ""
	}
	return k.names[0]
}

func (k *leaseKeys) OpensLeaseKey(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.names, name)
}

// keyedServer is a server whose lease keys are compared.
type keyedServer struct {
	leaseKeys
	*Relay
	log  bytes.Buffer
	stop func()
}

func startKeyed(t *testing.T, channels []Channel, names ...string) *keyedServer {
	t.Helper()
	s := &keyedServer{leaseKeys: leaseKeys{names: names}}
	s.Relay = NewRelay(NewHub(), channels, &s.leaseKeys, slog.New(slog.NewTextHandler(&s.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	s.stop = func() { cancel(); <-done }
	t.Cleanup(s.stop)
	return s
}

// TestLeaseKeysAreCompared: who has lease ids that do not open at another server is counted
// there, within seconds of its start or of a change of its file.
func TestLeaseKeysAreCompared(t *testing.T) {
	for name, c := range map[string]struct {
		one, two     []string
		atOne, atTwo int
	}{
		"the cluster's secret":     {nil, nil, 0, 0},
		"the same file":            {[]string{"k1"}, []string{"k1"}, 0, 0},
		"different files":          {[]string{"k1"}, []string{"k2"}, 1, 1},
		"a file on one":            {[]string{"k1"}, nil, 1, 1},
		"the new key added":        {[]string{"k1", "k2"}, []string{"k1"}, 0, 0},
		"the new key first on one": {[]string{"k2", "k1"}, []string{"k1", "k2"}, 0, 0},
		"the new key too early":    {[]string{"k2", "k1"}, []string{"k1"}, 0, 1},
		"the old key gone":         {[]string{"k2"}, []string{"k2", "k1"}, 0, 0},
		"the old key gone early":   {[]string{"k2"}, []string{"k1", "k2"}, 1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			nets := []Channel{newNetwork(), newNetwork()}
			one := startKeyed(t, nets, c.one...)
			time.Sleep(time.Hour)
			two := startKeyed(t, nets, c.two...)
			time.Sleep(5 * time.Second)
			if a, b := one.LeaseKeysDiffer(), two.LeaseKeysDiffer(); a != c.atOne || b != c.atTwo {
				t.Errorf("%s: %d and %d differ, want %d and %d", name, a, b, c.atOne, c.atTwo)
			}
			time.Sleep(time.Hour)
			if warnings := strings.Count(one.log.String(), "level=WARN"); warnings != c.atOne {
				t.Errorf("%s: %d warnings:\n%s", name, warnings, &one.log)
			}
			one.set("k1", "k2")
			two.set("k1", "k2")
			time.Sleep(5 * time.Second)
			if a, b := one.LeaseKeysDiffer(), two.LeaseKeysDiffer(); a+b != 0 {
				t.Errorf("%s, and then the same file: %d and %d differ", name, a, b)
			}
			two.set("k3")
			time.Sleep(5 * time.Second)
			if a, b := one.LeaseKeysDiffer(), two.LeaseKeysDiffer(); a != 1 || b != 1 {
				t.Errorf("%s, and then another file: %d and %d differ", name, a, b)
			}
			time.Sleep(time.Hour)
			one.set("k1", "k2", "k3") // its first key is as before
			time.Sleep(5 * time.Second)
			if a, b := one.LeaseKeysDiffer(), two.LeaseKeysDiffer(); a != 0 || b != 1 {
				t.Errorf("%s, and then a file with the other's key: %d and %d differ, want 0 and 1", name, a, b)
			}
			two.set("k4")
			time.Sleep(5 * time.Second)
			if n := one.LeaseKeysDiffer(); n != 1 {
				t.Errorf("%s, and then a new key: %d differ, want 1", name, n)
			}
			two.stop()
			time.Sleep(2 * differPause)
			if n := one.LeaseKeysDiffer(); n != 0 {
				t.Errorf("%s: %d differ after the other server stopped", name, n)
			}
		})
	}
}

// TestLeaseKeysOfStrangers: who can send such messages makes a server remember no more than
// a bounded number, and write a few lines a minute at most.
func TestLeaseKeysOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, net := time.Now(), newNetwork()
		s := startKeyed(t, []Channel{net}, "k1")
		for i := range 10 * maxCompared {
			_ = net.Tell(t.Context(), topicListen, fmt.Sprintf("%s stranger%d k2", keysAsked, i))
			if i%10 == 0 {
				time.Sleep(time.Second / 4)
			}
		}
		if n := s.LeaseKeysDiffer(); n == 0 || n > maxCompared {
			t.Errorf("%d differ", n)
		}
		for range 1000 { // one differs, none does, and so on
			_ = net.Tell(t.Context(), topicListen, keysAnswer+" flips k2")
			time.Sleep(time.Second / 4)
			_ = net.Tell(t.Context(), topicListen, keysAnswer+" flips k1")
			s.keys.forget(time.Now())
			time.Sleep(time.Second / 4)
		}
		minutes := int(time.Since(began).Minutes())
		if lines := strings.Count(s.log.String(), "\n"); lines > maxLines*(1+minutes) {
			t.Errorf("%d lines in %d minutes", lines, minutes)
		}
		for _, word := range []string{keysAsked, keysAnswer + " x", keysAsked + " a b c", keysAnswer + " x " + strings.Repeat("k", 33)} {
			s.keys.heard(word)
		}
		s.stop()
		if _, known := s.keys.others["x"]; known {
			t.Error("nonsense was taken")
		}
	})
}
