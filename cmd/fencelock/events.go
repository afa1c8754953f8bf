package main

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// channelsOf gives the channels over which servers tell each other what
// happens: so many nodes of the first set that one of them is up while that
// has a quorum. The embedded node has one server, and no channel.
func channelsOf(sets [][]node.Node) (channels []events.Channel) {
	first := sets[0]
	for _, n := range first[:quorum.Readers(len(first))] {
		if c, ok := n.(events.Channel); ok {
			channels = append(channels, c)
		}
	}
	return channels
}

// runEvents keeps the events going until ctx ends.
func (b *backend) runEvents(ctx context.Context, parts *errgroup.Group) {
	for _, run := range []func(context.Context) error{
		b.events.Run,
		events.NewFollower(b.events, b.locker).Run,
		events.NewRelay(b.events, b.channels).Run,
	} {
		parts.Go(func() error { return unlessStopped(ctx, run(ctx)) })
	}
}
