package etcdstore

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/optimistic"
)

// maxBytes bounds a request. etcd's limit is 1.5 MiB by default (--max-request-bytes).
const maxBytes = 1_400_000

// Commit writes c in one Txn; see optimistic.Service.
func (s *service) Commit(ctx context.Context, c *optimistic.Commit) (int64, error) {
	if len(c.Value)+len(c.Head)+len(c.Former) > maxBytes {
		return 0, replica.ErrTooLarge
	}
	var ops []clientv3.Op
	log := s.prefix + logName
	switch {
	case c.Former == "": // the log is of a head that was lost
		ops = append(ops, clientv3.OpDelete(log, clientv3.WithPrefix()))
	case c.From < c.First:
		ops = append(ops, clientv3.OpDelete(s.entry(c.From), clientv3.WithRange(s.entry(c.First))))
	}
	if c.Value != nil {
		ops = append(ops, clientv3.OpPut(s.entry(c.Number), string(append(s.clock.note(ctx), c.Value...))))
	}
	version, err := s.txn(ctx, c, ops)
	if errors.Is(err, rpctypes.ErrRequestTooLarge) {
		err = fmt.Errorf("%w: %w", replica.ErrTooLarge, err)
	}
	return version, err
}

func (s *service) txn(ctx context.Context, c *optimistic.Commit, ops []clientv3.Op) (int64, error) {
	head, claim := s.prefix+headName, s.prefix+claimName
	ops = append(ops, clientv3.OpPut(head, c.Head))
	if c.Claim != "" {
		end := []clientv3.Op{clientv3.OpDelete(claim)}
		ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{is(claim, c.Claim)}, end, nil))
	}
	var resp *clientv3.TxnResponse
	err := s.conn.try(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
		resp, err = client.Txn(ctx).If(is(head, c.Former)).Then(ops...).Else(clientv3.OpGet(head, clientv3.WithKeysOnly())).Commit()
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case resp.Succeeded:
		return resp.Header.Revision, nil
	}
	conflict := &optimistic.ConflictError{}
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			conflict.Version = kv.ModRevision
		}
	}
	return 0, conflict
}

// Claim sets the claim; see optimistic.Service.
func (s *service) Claim(ctx context.Context, server string) error {
	claim := s.prefix + claimName
	return s.conn.try(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Txn(ctx).If(is(claim, "")).Then(clientv3.OpPut(claim, server)).Commit()
		return err
	})
}

// is compares a key with a value; "" matches a missing key.
func is(key, value string) clientv3.Cmp {
	if value == "" {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	return clientv3.Compare(clientv3.Value(key), "=", value)
}

// The keys, below the prefix.
const (
	headName  = "head"
	claimName = "claim"
	logName   = "log/" // number
	clockName = "clock"
	topicName = "topics/"
)

// entry returns the key of an entry of the log. The keys sort by number.
func (s *service) entry(number int64) string {
	return fmt.Sprintf("%s%s%016x", s.prefix, logName, number)
}
