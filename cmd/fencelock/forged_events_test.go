package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// stranger can reach the channel over which servers send their events to each other.
type stranger struct {
	send func(word string)
	wrap func(message string) string // into what send takes

	mu       sync.Mutex
	recorded []string
}

func (s *stranger) record(word string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded = append(s.recorded, word)
}

func (s *stranger) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.recorded...)
}

// postgresStranger is a role that may log in and nothing else.
func postgresStranger(t *testing.T, pg *testenv.PG) *stranger {
	t.Helper()
	const name = "stranger"
	sqlOn(t, pg.URL(), `CREATE ROLE `+name+` LOGIN`)
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), strings.Replace(pg.URL(), "//postgres@", "//"+name+"@", 1))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	sum := sha256.Sum256([]byte("events"))
	channel := "fencelock_" + hex.EncodeToString(sum[:16])
	talking, listening := connect(), connect()
	if _, err := listening.Exec(t.Context(), `LISTEN `+channel); err != nil {
		t.Fatal(err)
	}
	s := &stranger{
		send: func(word string) {
			if _, err := talking.Exec(t.Context(), `SELECT pg_notify($1, $2)`, channel, word); err != nil {
				t.Error(err)
			}
		},
		wrap: func(message string) string { return "id 0." + base64.RawStdEncoding.EncodeToString([]byte(message)) },
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var done sync.WaitGroup
	done.Go(func() {
		for {
			n, err := listening.WaitForNotification(ctx)
			if err != nil {
				return
			}
			s.record(n.Payload)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
		_ = talking.Close(context.Background())
		_ = listening.Close(context.Background())
	})
	return s
}

// redisStranger is a user of a node's channels.
func redisStranger(t *testing.T, node *testenv.Redis) *stranger {
	t.Helper()
	client := node.Client()
	listening := client.PSubscribe(t.Context(), "fencelock:events:*")
	t.Cleanup(func() { _ = listening.Close() })
	s := &stranger{wrap: func(message string) string { return message }}
	s.send = func(word string) {
		channels, err := client.PubSubChannels(t.Context(), "fencelock:events:*").Result()
		if err != nil || len(channels) == 0 {
			t.Errorf("channels %v, %v", channels, err)
		}
		for _, channel := range channels {
			if err := client.Publish(t.Context(), channel, word).Err(); err != nil {
				t.Error(err)
			}
		}
	}
	go func() {
		for message := range listening.Channel() {
			s.record(message.Payload)
		}
	}()
	return s
}

// TestForgedEvents: whoever reaches the servers' channel (on Postgres any role that may log in) can neither make an
// event, nor repeat one, nor read any.
func TestForgedEvents(t *testing.T) {
	testenv.Long(t, "a forged event that a server's clients see")
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		pg := testenv.StartPostgres(t)
		store := "FENCELOCK_STORE=" + pg.OwnerURL()
		forgeEvents(t, start(t, store), start(t, store), postgresStranger(t, pg))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		nodes := testenv.StartRedisN(t, 1)
		servers := startServers(t, 2, nodes)
		forgeEvents(t, servers[0], servers[1], redisStranger(t, nodes[0]))
	})
}

func forgeEvents(t *testing.T, listening, other *process, s *stranger) {
	t.Helper()
	all := listening.listen("/events")
	other.until("its events are passed on", func() bool {
		other.ask(&wire.Lease{}, "POST", "/locks", `{"resource":"first","ttl_ms":250}`)
		select {
		case e := <-all:
			return e.Resource == "first" && e.Server != ""
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
	for n := range 20 {
		s.send(s.wrap(fmt.Sprintf(`{"server":"forged","number":%d,"sent":%d,"events":[{"kind":"granted","resource":"forged","holder":"w1","fencing_token":7,"ttl_ms":1000}]}`, n, time.Now().UnixMilli())))
	}
	other.acquire(`{"resource":"victims","holder":"of-the-victim"}`)
	counts := make(map[string]int)
	until := func(resource string) {
		t.Helper()
		late := time.After(30 * time.Second)
		for counts[resource] == 0 {
			select {
			case e := <-all:
				if e.kind == string(wire.EventGranted) {
					counts[e.Resource]++
				}
			case <-late:
				t.Fatalf("no event of %s", resource)
			}
		}
	}
	until("victims")
	testenv.Eventually(t, 10*time.Second, func() error {
		if len(s.all()) < 21 {
			return fmt.Errorf("%d messages were recorded", len(s.all()))
		}
		return nil
	})
	for _, word := range s.all() {
		text := word
		if _, part, ok := strings.Cut(word, "."); ok {
			raw, _ := base64.RawStdEncoding.DecodeString(part)
			text += string(raw)
		}
		if strings.Contains(text, "of-the-victim") {
			t.Errorf("a stranger reads %s", text)
		}
		s.send(word)
	}
	other.acquire(`{"resource":"last"}`)
	until("last")
	if counts["forged"] > 0 || counts["victims"] != 1 || counts["last"] != 1 {
		t.Errorf("events %v", counts)
	}
	if n := strings.Count(listening.Logs(), "a message from another server was refused"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
}
