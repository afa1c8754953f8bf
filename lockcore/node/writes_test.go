package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// prover is a node that can be switched to fail, or never to end, its writes.
type prover struct {
	Writes
	err    error
	hangs  bool
	writes int
}

func (p *prover) prove(t *testing.T, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	return p.Prove(ctx, within, func(ctx context.Context) error {
		p.writes++
		if p.hangs {
			<-ctx.Done()
			return ctx.Err()
		}
		return p.err
	})
}

func (p *prover) wants(t *testing.T, what string, sound bool, writes int) {
	t.Helper()
	p.writes = 0
	switch err := p.prove(t, 2*time.Minute); {
	case sound != (err == nil), err != nil && !errors.Is(err, ErrUnwritable):
		t.Errorf("%s: %v", what, err)
	case p.writes != writes:
		t.Errorf("%s: %d writes, want %d", what, p.writes, writes)
	}
}

func TestProof(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &prover{}
		p.wants(t, "of a node that never wrote", true, 1)
		p.wants(t, "after a write", true, 0)
		if p.writes = 0; p.prove(t, time.Millisecond) != nil || p.writes != 0 {
			t.Error("a write of this moment is no proof")
		}
		time.Sleep(time.Second)
		if p.writes = 0; p.prove(t, time.Millisecond) != nil || p.writes != 1 {
			t.Error("a write of a second ago is a proof for a millisecond")
		}

		p.err = errors.New("the disk is full")
		p.wants(t, "nobody knows yet", true, 0)
		p.Failed(p.err)
		p.wants(t, "after a failed write", false, 0)
		time.Sleep(failureStays)
		p.wants(t, "a second later", false, 1)
		if err := p.prove(t, time.Hour); !errors.Is(err, p.err) {
			t.Errorf("it does not say why: %v", err)
		}

		p.err = nil
		time.Sleep(time.Millisecond)
		p.Done()
		p.wants(t, "some writes fail, some do not", false, 0)
		time.Sleep(failureStays)
		p.wants(t, "none has failed for a second", true, 0)
		p.Doubt()
		p.wants(t, "in doubt", true, 1)
		time.Sleep(2 * time.Minute)
		p.wants(t, "nobody has written for long", true, 1)
	})
}

// A write that does not end counts as failed. If its caller gives up, that proves nothing about the node.
func TestProofThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &prover{hangs: true}
		p.wants(t, "hangs", false, 1)
		p.Failed(errors.New("process 7 has the lock"))
		time.Sleep(failureStays)
		p.wants(t, "hangs on", false, 1)
		if err := p.prove(t, 0); err == nil || err.Error() != "it cannot be written: process 7 has the lock" {
			t.Errorf("it forgot why: %v", err)
		}
		p.hangs = false
		time.Sleep(failureStays)
		p.wants(t, "ends again", true, 1)

		p.FailedBy(time.Now(), errors.New("the disk is full"))
		p.wants(t, "failed in time", false, 0)
		time.Sleep(failureStays)
		p.wants(t, "the next write", true, 1)
		p.FailedBy(time.Now().Add(-time.Second), errors.New("the time is over"))
		p.wants(t, "failed while this process stood still", true, 1)

		p.hangs = true
		time.Sleep(failureStays)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = p.Prove(ctx, 0, func(ctx context.Context) error { return ctx.Err() })
		p.wants(t, "after a caller that gave up", true, 0)
	})
}
