package zkstore

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/internal/testenv"
)

// A line that loses its server does not use another one. The store makes another line, to the next server, with a
// session of its own, and hears there what other servers commit.
func TestALineTakesOneServer(t *testing.T) {
	t.Parallel()
	z := testenv.SharedZooKeeper(t)
	ways := map[string]*testenv.Proxy{}
	for range 3 {
		p := testenv.StartProxy(t, z)
		ways[p.Addr()] = p
	}
	var addrs []string
	for addr := range ways {
		addrs = append(addrs, addr)
	}
	url := newURL(t)
	direct := openStore(t, url, patient())
	s := openStore(t, strings.Replace(url, z, strings.Join(addrs, ","), 1), patient())
	for i := range 2 * len(addrs) {
		was := s.service.session.present()
		server, id := was.conn.Server(), was.conn.SessionID()
		ways[server].Reset()
		testenv.Eventually(t, time.Minute, func() error {
			if _, _, err := was.conn.Get(url[len(Scheme+z):]); !errors.Is(err, zk.ErrConnectionClosed) {
				return errors.New("the line is not over")
			}
			if s.service.session.present() == was {
				return errors.New("there is no other line yet")
			}
			return s.service.session.connected()
		})
		if _, err := was.dial("tcp", server, time.Second); !errors.Is(err, errOver) {
			t.Errorf("the line takes another server: %v", err)
		}
		now := s.service.session.present()
		at := now.conn.Server()
		if now == was || at == server || now.conn.SessionID() == id {
			t.Fatalf("the line by %s is followed by one by %s, with the sessions %x and %x", server, at, id, now.conn.SessionID())
		}
		want := strconv.Itoa(i)
		putRow(t, direct, "k", want, 0)
		version := direct.service.newest().zxid
		testenv.Eventually(t, time.Minute, func() error { // without a read: by its watches
			if s.service.newest().zxid < version {
				return errors.New("a commit of another server is not heard")
			}
			return nil
		})
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}
