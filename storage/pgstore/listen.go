package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

const (
	// reconnectPause is the time before a broken subscription is tried again.
	reconnectPause = 250 * time.Millisecond
	// pollPause is the time between two attempts of the first waiters behind a pooler.
	pollPause = 250 * time.Millisecond
	// pingAfter is how long a subscription may be idle before it is checked.
	pingAfter = 10 * time.Second
	// maxWord is less than the maximum size of a notification.
	maxWord = 7900
)

// Listen calls w for the server's tickets until ctx ends; see replica.Store. Notifications of this process's
// own commits come directly; those of others come by LISTEN on a separate connection.
func (s *Store) Listen(ctx context.Context, server string, w node.Listener) {
	var done sync.WaitGroup
	done.Go(func() {
		s.subscribe(ctx, channelOf(server), subscriber{
			began: w.Subscribed,
			heard: func(word string) { deliver(word, server, w) },
			poll:  w.Subscribed,
		})
	})
	s.local.Listen(ctx, server, w)
	done.Wait()
}

// subscriber has the callbacks of a subscription.
type subscriber struct {
	began func()            // earlier notifications may be lost
	heard func(word string) // a notification came
	poll  func()            // there are no notifications, and pollPause has passed
}

// subscribe listens until ctx ends, and reconnects by itself.
func (s *Store) subscribe(ctx context.Context, channel string, sub subscriber) {
	for ctx.Err() == nil {
		_ = s.listen(ctx, channel, sub) // it is tried again
		pause.For(ctx, reconnectPause)
	}
}

var errMoved = errors.New("the transactions are on another server by now")

// listen returns when the subscription breaks.
func (s *Store) listen(ctx context.Context, channel string, sub subscriber) error {
	config := s.pool.Config().ConnConfig
	if err := s.opts.logIn(ctx, config); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer s.hangUp(ctx, conn)
	pooled, err := pooled(ctx, conn)
	if err != nil {
		return err
	}
	if pooled {
		s.hangUp(ctx, conn)
		return poll(ctx, sub.poll)
	}
	if _, err := conn.Exec(ctx, `LISTEN `+channel); err != nil {
		return err
	}
	sub.began()
	return s.hear(ctx, conn, sub.heard)
}

// hear periodically checks an idle connection. A connection that was cut off silently is found broken, and one
// to a server that was replaced is given up.
func (s *Store) hear(ctx context.Context, conn *pgx.Conn, heard func(word string)) error {
	began := s.mirror.lastIncarnation()
	for {
		word, err := await(ctx, conn)
		switch {
		case err == nil:
			heard(word)
			continue
		case ctx.Err() != nil || conn.IsClosed():
			return err
		case s.mirror.lastIncarnation() != began:
			return errMoved
		}
		limited, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		err = conn.Ping(limited)
		cancel()
		if err != nil {
			return err
		}
	}
}

// await waits for a notification, at most for pingAfter.
func await(ctx context.Context, conn *pgx.Conn) (word string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pingAfter)
	defer cancel()
	notification, err := conn.WaitForNotification(ctx)
	if err != nil {
		return "", err
	}
	return notification.Payload, nil
}

func (s *Store) hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Timeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// pooled detects a pooler. When a connection begins, a pooler names a made-up process, since it does not know
// yet which of the server's processes will serve it. In its transaction mode a LISTEN would be lost.
func pooled(ctx context.Context, conn *pgx.Conn) (bool, error) {
	var pid uint32
	err := conn.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid)
	return pid != conn.PgConn().PID(), err
}

// poll replaces notifications until ctx ends.
func poll(ctx context.Context, try func()) error {
	for pause.For(ctx, pollPause) {
		try()
	}
	return ctx.Err()
}

// channelOf returns the channel of a server, a name that needs no quotes.
func channelOf(server string) string {
	sum := sha256.Sum256([]byte(server))
	return "fencelock_" + hex.EncodeToString(sum[:16])
}

func encode(text string) string { return base64.RawStdEncoding.EncodeToString([]byte(text)) }

func decode(text string) (string, bool) {
	raw, err := base64.RawStdEncoding.DecodeString(text)
	return string(raw), err == nil
}

// encodeWake encodes a notification: resource, ticket and holder, in base64, separated by blanks. If they are
// too long, it is empty, and then every first waiter tries.
func encodeWake(w replica.Wake) string {
	word := strings.Join([]string{encode(w.Resource), encode(w.Ticket.ID), encode(w.Ticket.Holder)}, " ")
	if len(word) > maxWord {
		return ""
	}
	return word
}

func deliver(word, server string, w node.Listener) {
	parts := strings.Split(word, " ")
	if len(parts) != 3 {
		w.Subscribed()
		return
	}
	resource, ok1 := decode(parts[0])
	id, ok2 := decode(parts[1])
	holder, ok3 := decode(parts[2])
	if !ok1 || !ok2 || !ok3 {
		w.Subscribed()
		return
	}
	w.Wake(resource, node.Ticket{ID: id, Server: server, Holder: holder})
}
