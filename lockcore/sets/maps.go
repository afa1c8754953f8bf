package sets

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// KnowsMap reports whether a server with these present sets, and these next ones or none, knows the map with
// that name.
func KnowsMap(name string, present, next []node.Cluster) bool {
	a := &router{alone: len(present) == 1}
	if a.present.name = mapOf(present...); next != nil {
		a.next.name = mapOf(next...)
	}
	return a.knows(name)
}

// MapName returns the name of the map for a list of sets, whatever their order.
func MapName(sets [][]node.Node) string {
	var clusters []node.Cluster
	for _, nodes := range sets {
		clusters = append(clusters, membership.ClusterOf(nodes))
	}
	return mapOf(clusters...)
}

// mapOf is MapName for the sets' clusters.
func mapOf(clusters ...node.Cluster) string {
	var hashes []string
	for _, c := range clusters {
		hashes = append(hashes, c.Hash)
	}
	slices.Sort(hashes)
	sum := sha256.Sum256([]byte(strings.Join(hashes, "\n")))
	return hex.EncodeToString(sum[:8])
}

// validateNext refuses a next map in which a set shares only some nodes with a present one.
func validateNext(present, next [][]node.Node) error {
	if next == nil {
		return nil
	}
	if MapName(present) == MapName(next) {
		return errors.New("the next node sets are the same as the current ones")
	}
	hashes := make(map[string]string) // by node
	for _, nodes := range slices.Concat(present, next) {
		hash := membership.ClusterOf(nodes).Hash
		for _, n := range nodes {
			if was := hashes[n.Name()]; was != "" && was != hash {
				return fmt.Errorf("node %s is in two node sets: a set is added or removed as a whole", n.Name())
			}
			hashes[n.Name()] = hash
		}
	}
	return validateSets(next)
}
