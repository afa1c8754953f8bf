package redlock

import "github.com/fencelock/fencelock/lockcore/node"

// ClusterOf names the cluster of these nodes.
func ClusterOf(nodes []node.Node) node.Cluster { return clusterOf(nodes) }
