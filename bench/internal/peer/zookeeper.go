package peer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// zkSessions is the number of connections that the workers share. With only one, a single
// goroutine would read all responses.
const zkSessions = 8

// ZooKeeper is the lock recipe of the Go client (zk.NewLock).
type ZooKeeper struct {
	conns []*zk.Conn
	next  atomic.Int64
}

// NewZooKeeper connects to the server.
func NewZooKeeper(addr string) (*ZooKeeper, error) {
	z := &ZooKeeper{}
	for range zkSessions {
		conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogInfo(false))
		if err != nil {
			return nil, fmt.Errorf("ZooKeeper: %w", err)
		}
		z.conns = append(z.conns, conn)
	}
	return z, nil
}

// Name returns the name in tables.
func (*ZooKeeper) Name() string { return "zookeeper-recipe" }

// Open gives the worker one of the shared connections.
func (z *ZooKeeper) Open(context.Context) (Session, error) {
	return &zkSession{conn: z.conns[z.next.Add(1)%zkSessions]}, nil
}

// Close ends the sessions.
func (z *ZooKeeper) Close() error {
	for _, conn := range z.conns {
		conn.Close()
	}
	return nil
}

type zkSession struct {
	conn *zk.Conn
	lock *zk.Lock
	name string
}

// Acquire waits without a limit, because the recipe cannot wait in another way.
func (s *zkSession) Acquire(_ context.Context, c Claim) error {
	if s.lock == nil || s.name != c.Resource {
		s.lock, s.name = zk.NewLock(s.conn, "/bench/"+c.Resource, zk.WorldACL(zk.PermAll)), c.Resource
	}
	return s.lock.Lock()
}

func (s *zkSession) Release(context.Context) error { return s.lock.Unlock() }

func (*zkSession) Close() error { return nil }
