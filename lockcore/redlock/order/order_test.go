package order_test

import (
	"slices"
	"testing"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/order"
)

// TestGrants lists the invariants that a later grant or extend breaks, given the tokens that were granted before.
func TestGrants(t *testing.T) {
	first := order.Grant{Resource: "r", Owner: "one", Token: 5}
	for _, c := range []struct {
		name string
		then func(g *order.Grants)
		want []lockcore.Invariant
	}{
		{"a larger token", func(g *order.Grants) { g.Add(g.Before("r"), order.Grant{Resource: "r", Owner: "two", Token: 6}) }, nil},
		{"the same lease again", func(g *order.Grants) { g.Add(g.Before("r"), first) }, nil},
		{"the same token for another lease", func(g *order.Grants) { g.Add(g.Before("r"), order.Grant{Resource: "r", Owner: "two", Token: 5}) }, []lockcore.Invariant{lockcore.TokenOrder}},
		{"a smaller token", func(g *order.Grants) { g.Add(g.Before("r"), order.Grant{Resource: "r", Owner: "two", Token: 4}) }, []lockcore.Invariant{lockcore.TokenOrder}},
		{"a smaller token of another resource", func(g *order.Grants) { g.Add(g.Before("s"), order.Grant{Resource: "s", Owner: "two", Token: 4}) }, nil},
		{"a smaller token of a request that began before", func(g *order.Grants) { g.Add(order.Grant{}, order.Grant{Resource: "r", Owner: "two", Token: 4}) }, nil},
		{"the largest is remembered", func(g *order.Grants) {
			g.Add(order.Grant{}, order.Grant{Resource: "r", Owner: "two", Token: 4})
			g.Add(g.Before("r"), order.Grant{Resource: "r", Owner: "three", Token: 4})
		}, []lockcore.Invariant{lockcore.TokenOrder}},
		{"an extend of the last lease", func(g *order.Grants) { g.Extended(g.Before("r"), "r", 5) }, nil},
		{"an extend of an earlier lease", func(g *order.Grants) { g.Extended(g.Before("r"), "r", 4) }, []lockcore.Invariant{lockcore.ExtendOrder}},
		{"an extend that began before", func(g *order.Grants) { g.Extended(order.Grant{}, "r", 4) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var broken []lockcore.Invariant
			g := order.NewGrants(func(one lockcore.Invariant, _ ...any) { broken = append(broken, one) })
			g.Add(g.Before("r"), first)
			c.then(g)
			if !slices.Equal(broken, c.want) {
				t.Errorf("broken: %v, want %v", broken, c.want)
			}
		})
	}
}
