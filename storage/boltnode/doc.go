// Package boltnode is a lockcore.Node in one durable bbolt file: the embedded
// default, a cluster of one. It may share the file with others; every bucket
// of its own begins with "node_".
//
// All of its state is in the file and nowhere else, so a commit that fails
// leaves nothing behind in memory. Operations that wait at the same time are
// one transaction, synced once, and are answered only after the sync.
//
// Because the file is durable, a restart loses nothing and the node stays
// admitted. A file without state founds itself, above every token that an
// earlier, deleted file can have reached (Unix time in milliseconds; see
// Options.Floor). Not detected: a file that is brought back from a backup.
//
// A lock ends by the monotonic clock while the process that set it lives. For
// the next process its end is written by the wall clock too; whatever that
// clock did in between, no lock lasts longer than its TTL from the opening.
package boltnode
