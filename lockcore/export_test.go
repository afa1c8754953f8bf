package lockcore

// ClusterOf names the cluster of these nodes.
func ClusterOf(nodes []Node) Cluster { return clusterOf(nodes) }
