package etcdstore

import (
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// clock uses an etcd lease of 30 years as a clock: etcd reports how much of it has passed. The leader counts
// that time, independent of wall clocks. A new leader restarts the lease, so the clock may show less time than
// has passed, but never more.
//
// Each entry of the log contains the clock's time when it was written, rounded up. A server that reads the
// entry later knows its minimum age.
type clock struct {
	conn *conn
	key  string

	mu     sync.Mutex
	lease  clientv3.LeaseID // 0 if unknown
	passed time.Duration    // the maximum of the lease that had passed at the reading
	read   time.Time        // the local time just before the reading
}

const (
	clockTTL   = 30 * 365 * 24 * time.Hour
	clockEvery = time.Minute // how long a reading is extrapolated with this machine's clock
	clockUnit  = time.Second
)

// note returns the prefix of an entry that is written now: the clock's lease and time, or zeros if the clock
// cannot be read.
func (c *clock) note(ctx context.Context) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lease == 0 || time.Since(c.read) > clockEvery {
		if err := c.look(ctx); err != nil {
			return []byte{0, 0}
		}
	}
	now := c.passed + time.Since(c.read)
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(c.lease)), uint64((now+clockUnit-1)/clockUnit))
}

var errClock = errors.New("etcd does not know the lease by which it counts time")

// now reads the clock: at least this much time has passed. It does not create a clock.
func (c *clock) now(ctx context.Context) (at reading, err error) {
	resp, err := c.conn.get(ctx, c.key)
	if err != nil || len(resp.Kvs) == 0 {
		return at, err
	}
	id, err := strconv.ParseInt(string(resp.Kvs[0].Value), 16, 64)
	if err != nil {
		return at, errClock
	}
	passed, err := c.ask(ctx, clientv3.LeaseID(id))
	return reading{lease: clientv3.LeaseID(id), passed: max(0, passed-time.Second)}, err
}

// look reads the clock, and creates it if there is none. The caller holds c.mu.
func (c *clock) look(ctx context.Context) (err error) {
	if c.lease == 0 {
		if c.lease, err = c.find(ctx); err != nil {
			return err
		}
	}
	before := time.Now()
	passed, err := c.ask(ctx, c.lease)
	if errors.Is(err, errClock) {
		c.lease = 0
	}
	if err == nil {
		c.passed, c.read = passed, before
	}
	return err
}

// ask returns how much of a lease has passed, in whole seconds, rounded up.
func (c *clock) ask(ctx context.Context, lease clientv3.LeaseID) (passed time.Duration, err error) {
	err = c.conn.try(ctx, func(ctx context.Context, client *clientv3.Client) error {
		resp, err := client.TimeToLive(ctx, lease)
		switch {
		case err != nil:
			return err
		case resp.TTL <= 0:
			return errClock
		}
		passed = time.Duration(resp.GrantedTTL-resp.TTL) * time.Second
		return nil
	})
	return passed, err
}

// find finds the clock's lease, or creates one.
func (c *clock) find(ctx context.Context) (clientv3.LeaseID, error) {
	resp, err := c.conn.get(ctx, c.key)
	if err != nil {
		return 0, err
	}
	former := ""
	if len(resp.Kvs) > 0 {
		former = string(resp.Kvs[0].Value)
		if id, err := strconv.ParseInt(former, 16, 64); err == nil {
			if _, err = c.ask(ctx, clientv3.LeaseID(id)); !errors.Is(err, errClock) {
				return clientv3.LeaseID(id), err
			}
		}
	}
	return c.make(ctx, former)
}

// make creates the clock again, unless another server creates it first.
func (c *clock) make(ctx context.Context, former string) (id clientv3.LeaseID, err error) {
	err = c.conn.try(ctx, func(ctx context.Context, client *clientv3.Client) error {
		granted, err := client.Grant(ctx, int64(clockTTL/time.Second))
		if err != nil {
			return err
		}
		put := clientv3.OpPut(c.key, strconv.FormatInt(int64(granted.ID), 16))
		made, err := client.Txn(ctx).If(is(c.key, former)).Then(put).Commit()
		if err == nil && !made.Succeeded {
			_, err = client.Revoke(ctx, granted.ID)
			return errors.Join(errClock, err)
		}
		id = granted.ID
		return err
	})
	return id, err
}

// reading is a reading of the clock, used for all entries of a load.
type reading struct {
	lease  clientv3.LeaseID
	passed time.Duration
}

// age decodes an entry. It returns the entry's minimum age and the rest of it.
func (r reading) age(raw []byte) (age time.Duration, rest []byte, ok bool) {
	lease, n := binary.Uvarint(raw)
	if n <= 0 {
		return 0, nil, false
	}
	at, m := binary.Uvarint(raw[n:])
	if m <= 0 {
		return 0, nil, false
	}
	if lease != 0 && clientv3.LeaseID(lease) == r.lease {
		age = max(0, r.passed-time.Duration(at)*clockUnit)
	}
	return age, raw[n+m:], true
}
