// Package node is the contract of one node. A node is one independent vote: an
// operation on it is atomic, and no node knows of another. The package defines the
// operations ([Op]), the replies ([Reply]), and how a node is admitted to a cluster
// ([Admittee]). What each operation does is in docs/PROTOCOL.md.
//
// There are two implementations. lockcore/replica has the rules in Go, over any store; storage/redisnode has
// them in Lua, on Redis. The suite of lockcore/nodetest runs against both, and a differential test compares
// them.
package node
