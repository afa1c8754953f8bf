package etcdstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/optimistic"
)

// etcd's limits of a request, with room for what is around the rows.
const (
	flatOps    = 120       // of 128 (--max-txn-ops)
	nestedOps  = 60        // a nested Txn may have what the one around it has left
	maxOps     = 50 * 60   // in nested Txns
	maxBytes   = 1_400_000 // of 1.5 MiB (--max-request-bytes)
	bytesPerOp = 40
)

// Commit writes c in one Txn; see optimistic.Service.
func (s *service) Commit(ctx context.Context, c *optimistic.Commit) (int64, error) {
	ops, err := s.writes(ctx, c)
	if err != nil {
		return 0, err
	}
	version, err := s.txn(ctx, c, ops)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		s.leases.forget()
		if ops, err = s.writes(ctx, c); err == nil {
			version, err = s.txn(ctx, c, ops)
		}
	}
	if errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrRequestTooLarge) {
		err = fmt.Errorf("%w: %w", replica.ErrTooLarge, err)
	}
	return version, err
}

// writes are the operations on rows.
func (s *service) writes(ctx context.Context, c *optimistic.Commit) (ops []clientv3.Op, err error) {
	size := len(c.Head) + len(c.Former)
	rows := s.rows(c.Generation)
	for _, key := range c.Delete {
		size += bytesPerOp + len(rows) + len(key)
		ops = append(ops, clientv3.OpDelete(rows+key))
	}
	for _, p := range c.Put {
		size += bytesPerOp + len(rows) + len(p.Key) + len(p.Value)
		if p.TTL == 0 {
			ops = append(ops, clientv3.OpPut(rows+p.Key, encode(0, p.Value)))
			continue
		}
		ends := c.At.Add(p.TTL)
		on, err := s.leases.find(ctx, ends, p.TTL)
		if err != nil {
			return nil, fmt.Errorf("grant a lease: %w", err)
		}
		ops = append(ops, clientv3.OpPut(rows+p.Key, encode(on.ends.Sub(ends), p.Value), clientv3.WithLease(on.id)))
	}
	if len(ops) > maxOps || size > maxBytes {
		return nil, replica.ErrTooLarge
	}
	former, err := optimistic.Generation(c.Former)
	switch {
	case err != nil:
		return nil, err
	case c.Former == "": // rows of a head that was lost
		ops = append(ops, clientv3.OpDelete(s.prefix+rowsName, clientv3.WithPrefix()))
	case former != c.Generation:
		ops = append(ops, clientv3.OpDelete(s.rows(former), clientv3.WithPrefix()))
	}
	return nest(ops), nil
}

// encode is a row as etcd keeps it: how long before its lease it ends, and its value.
func encode(slack time.Duration, value []byte) string {
	raw := make([]byte, 0, binary.MaxVarintLen64+len(value))
	return string(append(binary.AppendUvarint(raw, uint64(slack/slackUnit)), value...))
}

func decode(raw []byte) (slack time.Duration, value []byte, ok bool) {
	n, size := binary.Uvarint(raw)
	return time.Duration(n) * slackUnit, raw[max(size, 0):], size > 0
}

// nest puts operations that are too many for one Txn into Txns of their own.
func nest(ops []clientv3.Op) (nested []clientv3.Op) {
	if len(ops) <= flatOps {
		return ops
	}
	for len(ops) > 0 {
		n := min(len(ops), nestedOps)
		nested = append(nested, clientv3.OpTxn(nil, ops[:n], nil))
		ops = ops[n:]
	}
	return nested
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

// is compares a key with a value; "" is for a key that there is not.
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
	rowsName  = "rows/" // generation/key
	topicName = "topics/"
)

const generationBase = 36

// rows is what the rows of a generation begin with.
func (s *service) rows(generation uint64) string {
	return s.prefix + rowsName + strconv.FormatUint(generation, generationBase) + "/"
}
