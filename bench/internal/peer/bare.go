package peer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// bareScript executes a batch of operations, and checks no rule of the protocol.
//
//	ARGV  a MessagePack array of owner, resource and TTL (ms; 0 releases) for each operation
//	reply an integer each: the token of a grant, 1 for a release, 0 for neither
var bareScript = redis.NewScript(`
local ops, replies = cmsgpack.unpack(ARGV[1]), {}
for i = 1, #ops, 3 do
  local owner, key, ttl, reply = ops[i], ops[i+1], ops[i+2], 0
  if ttl > 0 then
    if redis.call('SET', 'l' .. key, owner, 'NX', 'PX', ttl) then
      reply = redis.call('INCR', 'c' .. key)
    end
  elseif redis.call('GET', 'l' .. key) == owner then
    reply = redis.call('DEL', 'l' .. key)
  end
  replies[#replies+1] = reply
end
return replies`)

// Bare is the floor under fencelock in-process. It sends the same batches to the same nodes, but
// with the smallest script that locks and counts. It gives no guarantees.
type Bare struct {
	clients []*redis.Client
	queues  []chan bareJob
	done    sync.WaitGroup
}

// bareBatch is the maximum size of a batch, the same as for a fencelock node.
const bareBatch = 170

// bareJob is one operation on one node.
type bareJob struct {
	op    *bareOp
	reply *bareRound
}

type bareOp struct {
	owner, resource string
	ttl             time.Duration // 0 releases
}

// NewBare connects to the nodes.
func NewBare(urls []string) (*Bare, error) {
	b := &Bare{}
	for _, url := range urls {
		c, err := client(url)
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
		queue := make(chan bareJob, 1<<12)
		b.clients, b.queues = append(b.clients, c), append(b.queues, queue)
		b.done.Go(func() { bareLoop(c, queue) })
	}
	return b, nil
}

// Name returns the name in tables.
func (*Bare) Name() string { return "bare-batch" }

// Open makes a session.
func (b *Bare) Open(context.Context) (Session, error) { return &bareSession{bare: b}, nil }

// Close stops the senders, and then closes their connections.
func (b *Bare) Close() error {
	for _, q := range b.queues {
		close(q)
	}
	b.done.Wait()
	return closeAll(b.clients)
}

// bareLoop sends the queued operations of one node, batch after batch.
func bareLoop(c *redis.Client, queue <-chan bareJob) {
	var jobs []bareJob
	var packed []byte
	for first := range queue {
		jobs = gather(append(jobs[:0], first), queue, bareBatch)
		packed = packBare(packed[:0], jobs)
		replies, err := bareScript.EvalSha(context.Background(), c, nil, packed).Int64Slice()
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			replies, err = bareScript.Eval(context.Background(), c, nil, packed).Int64Slice()
		}
		for i, j := range jobs {
			j.reply.deliver(err == nil && i < len(replies) && replies[i] > 0)
		}
	}
}

// gather adds the jobs that are queued behind the first. It yields first, so that workers that are about to queue a job
// get into this batch.
func gather[J any](jobs []J, queue <-chan J, most int) []J {
	for grown := 0; grown < len(jobs) && len(jobs) < most; {
		grown = len(jobs)
		runtime.Gosched()
		jobs = takeQueued(jobs, queue, most)
	}
	return jobs
}

func takeQueued[J any](jobs []J, queue <-chan J, most int) []J {
	for len(jobs) < most {
		select {
		case j, ok := <-queue:
			if !ok {
				return jobs
			}
			jobs = append(jobs, j)
		default:
			return jobs
		}
	}
	return jobs
}

// packBare writes the script's argument.
func packBare(buf []byte, jobs []bareJob) []byte {
	const array16, str8, uint32Code = 0xdc, 0xd9, 0xce
	text := func(s string) {
		buf = append(buf, str8, byte(len(s)))
		buf = append(buf, s...)
	}
	buf = append(buf, array16)
	buf = binary.BigEndian.AppendUint16(buf, uint16(3*len(jobs)))
	for _, j := range jobs {
		text(j.op.owner)
		text(j.op.resource)
		buf = append(buf, uint32Code)
		buf = binary.BigEndian.AppendUint32(buf, uint32(j.op.ttl.Milliseconds()))
	}
	return buf
}

// bareRound is one operation on all nodes, decided by a quorum.
type bareRound struct {
	nodes, quorum int32
	yes, answered atomic.Int32
	decided       chan bool
}

func (r *bareRound) deliver(ok bool) {
	if ok && r.yes.Add(1) == r.quorum {
		r.decided <- true
	}
	if r.answered.Add(1) == r.nodes && r.yes.Load() < r.quorum {
		r.decided <- false
	}
}

type bareSession struct {
	bare  *Bare
	lease bareOp
}

// Acquire tries once; it cannot wait.
func (s *bareSession) Acquire(ctx context.Context, c Claim) error {
	s.lease = bareOp{owner: rand.Text(), resource: c.Resource, ttl: c.TTL}
	ok, err := s.round(ctx, s.lease)
	if err == nil && !ok {
		return ErrBusy
	}
	return err
}

func (s *bareSession) Release(ctx context.Context) error {
	ok, err := s.round(ctx, bareOp{owner: s.lease.owner, resource: s.lease.resource})
	if err == nil && !ok {
		return errGone
	}
	return err
}

func (s *bareSession) round(ctx context.Context, op bareOp) (ok bool, err error) {
	n := int32(len(s.bare.queues))
	r := &bareRound{nodes: n, quorum: n/2 + 1, decided: make(chan bool, 1)}
	for _, q := range s.bare.queues {
		q <- bareJob{op: &op, reply: r}
	}
	select {
	case ok = <-r.decided:
		return ok, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (*bareSession) Close() error { return nil }
