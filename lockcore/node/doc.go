// Package node is the contract of one node, an independent vote: its operations and
// their replies, and how it is admitted to a cluster. storage/redisnode and
// lockcore/replica are nodes; lockcore/nodetest is the suite that every node passes.
package node
