package check

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// record is the part of a node's admission record that identifies its cluster.
type record struct {
	cluster node.Cluster // zero without a record
	maxTTL  time.Duration
	opened  bool     // the node was admitted, in this incarnation or an earlier one
	mapped  node.Map // without its floor
}

func readRecord(ctx context.Context, client *redis.Client) (r record, err error) {
	fields := []string{"cluster", "max_ttl", "map", "map_epoch", "generation", "epoch"}
	values, err := client.HMGet(ctx, redisnode.OwnKey, fields...).Result()
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"): // the key is another program's, which another check reports
		return r, nil
	case err != nil:
		return r, err
	}
	number := func(v any) int64 {
		text, _ := v.(string)
		n, _ := strconv.ParseInt(text, 10, 64)
		return n
	}
	if mark, ok := values[0].(string); ok {
		r.cluster = redisnode.ParseMark(mark)
	}
	r.maxTTL = time.Duration(number(values[1])) * time.Millisecond
	r.opened = values[5] != nil
	name, _ := values[2].(string)
	r.mapped = node.Map{Name: name, Epoch: node.Epoch(number(values[3])), Generation: number(values[4])}
	return r, nil
}

// clusterOf returns the cluster of the nodes at these addresses, which must be valid.
func clusterOf(urls []string) node.Cluster {
	names := make([]string, len(urls))
	for i, url := range urls {
		if opts, err := redisnode.ParseAddr(url); err == nil {
			names[i] = opts.Addr + "/" + strconv.Itoa(opts.DB)
		}
	}
	return membership.ClusterNamed(names...)
}

// records compares the admission records of a set's nodes with the configuration. It returns the longest
// TTL in the records.
func (r *Report) records(cfg config.Config, set int, want node.Cluster, nodes []redisNode) (longest time.Duration) {
	var last node.Map
	opened := false
	var other []string // nodes with another node list
	for _, n := range nodes {
		switch {
		case n.record.cluster == node.Cluster{}:
			continue
		case n.record.cluster != want:
			other = append(other, fmt.Sprintf("%s (of %d nodes)", n.name, n.record.cluster.Nodes))
			continue
		}
		longest = max(longest, n.record.maxTTL)
		if n.record.mapped.Epoch > last.Epoch {
			last = n.record.mapped
		}
		opened = opened || n.record.opened
	}
	if other != nil {
		r.Add(Wrong, "FENCELOCK_REDIS_ADDRS", fmt.Sprintf("set %d names %d nodes, and these belong to a cluster with another list: %s. They refuse servers with this one", set, want.Nodes, strings.Join(other, ", ")),
			"use the list of the running servers; to change it: docs/how-to/change-nodes.md")
	}
	if opened {
		r.mapOf(cfg, set, last)
	}
	return longest
}

// mapOf compares the map by which a set votes with the configured node sets.
func (r *Report) mapOf(cfg config.Config, set int, m node.Map) {
	var present, next []node.Cluster
	for _, urls := range cfg.RedisSets {
		present = append(present, clusterOf(urls))
	}
	for _, urls := range cfg.RedisNextSets {
		next = append(next, clusterOf(urls))
	}
	if sets.KnowsMap(m.Name, present, next) {
		return
	}
	r.Add(Wrong, "FENCELOCK_REDIS_ADDRS", fmt.Sprintf("set %d belongs to a cluster with other node sets (generation %d), or they are being changed", set, m.Generation),
		"use the running servers' FENCELOCK_REDIS_ADDRS and, during a change, their FENCELOCK_REDIS_NEXT_ADDRS; 'fencelock sets' adds and removes sets")
}
