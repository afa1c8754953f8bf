package peer

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// Bolt is the floor under fencelock's embedded file: a loop in this process that executes all waiting
// operations in one bbolt transaction, and syncs it once. It keeps a row for each resource and checks no rule of the
// protocol.
type Bolt struct {
	db    *bbolt.DB
	queue chan boltJob
	done  sync.WaitGroup
}

// boltBatch is the maximum number of operations in a transaction, the same as for fencelock's file.
const boltBatch = 512

var boltRows = []byte("rows")

// boltJob is an acquire, or a release if its TTL is 0.
type boltJob struct {
	resource, owner string
	ttl             time.Duration
	reply           chan error
}

// NewBolt creates the file.
func NewBolt(path string) (*Bolt, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return nil, err
	}
	b := &Bolt{db: db, queue: make(chan boltJob, 1<<12)}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(boltRows)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	b.done.Go(b.commitAll)
	return b, nil
}

// Name returns the name in tables.
func (*Bolt) Name() string { return "bbolt-batch" }

// Open makes a session.
func (b *Bolt) Open(context.Context) (Session, error) {
	return &boltSession{bolt: b, job: boltJob{owner: rand.Text(), reply: make(chan error, 1)}}, nil
}

// Close stops the loop, and closes the file.
func (b *Bolt) Close() error {
	close(b.queue)
	b.done.Wait()
	return b.db.Close()
}

// commitAll executes the queued operations, transaction after transaction.
func (b *Bolt) commitAll() {
	var jobs []boltJob
	for first := range b.queue {
		jobs = gather(append(jobs[:0], first), b.queue, boltBatch)
		results := make([]error, len(jobs))
		failed := b.db.Update(func(tx *bbolt.Tx) (err error) {
			rows := tx.Bucket(boltRows)
			for i, j := range jobs {
				results[i], err = j.execute(rows)
				if err != nil {
					return err
				}
			}
			return nil
		})
		for i, j := range jobs {
			if failed != nil {
				results[i] = failed
			}
			j.reply <- results[i]
		}
	}
}

// execute returns the operation's result, and an error if the transaction must fail. A row has the token, the expiry
// in nanoseconds (0 if it is free) and the owner.
func (j *boltJob) execute(rows *bbolt.Bucket) (result, err error) {
	const number = 8
	var token, expires uint64
	var owner []byte
	if row := rows.Get([]byte(j.resource)); len(row) >= 2*number {
		token, expires, owner = binary.BigEndian.Uint64(row), binary.BigEndian.Uint64(row[number:]), row[2*number:]
	}
	now := uint64(time.Now().UnixNano())
	switch {
	case j.ttl > 0 && expires > now:
		return ErrBusy, nil
	case j.ttl > 0:
		token, expires = token+1, now+uint64(j.ttl)
	case !bytes.Equal(owner, []byte(j.owner)):
		return fmt.Errorf("the lease of %s is gone", j.resource), nil
	default:
		expires = 0
	}
	row := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, token), expires)
	return nil, rows.Put([]byte(j.resource), append(row, j.owner...))
}

type boltSession struct {
	bolt *Bolt
	job  boltJob
}

// Acquire tries once; it cannot wait.
func (s *boltSession) Acquire(_ context.Context, c Claim) error {
	s.job.resource = c.Resource
	return s.do(c.TTL)
}

func (s *boltSession) Release(context.Context) error { return s.do(0) }

func (s *boltSession) do(ttl time.Duration) error {
	s.job.ttl = ttl
	s.bolt.queue <- s.job
	return <-s.job.reply
}

func (*boltSession) Close() error { return nil }
