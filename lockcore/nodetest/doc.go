// Package nodetest is the suite that every kind of node passes. It also has [Model], a node in memory for
// tests of the layers above.
//
// # The rules
//
// The behaviour of one node is specified in text files, one per rule, in the folder rules. Each file begins
// with its rule. [Run] runs every file unchanged on every kind of node: each operation alone, and each in a
// batch between strangers' operations. The simulation runs the files on its own nodes. The printed replies are
// the same everywhere. A file has scenarios, each on a new node:
//
//	subtest an-extend-never-shortens
//
//	acquire a L1 for=1m
//	# A comment.
//	extend a L1 +1 for=30s
//	----
//	granted +1 left=1m
//	granted +1 left=1m meta=L1's
//
//	subtest end
//
// Each line's reply is printed below the ----, but commands that only prepare something print nothing. In this
// folder and in lockcore/replica, go test -rewrite writes the present output into the files. Read the
// difference before you keep it. A word with blanks is quoted as in Go.
//
// Numbers are relative. Token +1 is one above the high-water mark that the node had when it was admitted, and
// -1 one below. Epoch E is the epoch in which the node was admitted. "max" is the largest token, and "reach"
// is the largest that the node accepts. A remaining time is printed as the time that a command gave, if it
// can be the rest of that time.
//
// Operations ([node.Op]) are acquire, confirm, extend, release, release-after, break, retract,
// read, enqueue, dequeue, forget and heartbeat. Their words are in the table of operations;
// pairs set the other fields: for=TIME, meta=, try=ATTEMPT, scope=, above=TOKEN, ticket=NAME,
// server=, epoch=, map=. The usual TTL is a minute, and the metadata of L1's lock are "L1's".
//
// The first block of a scenario may be "node", with its requirements: blank (a node that holds nothing, and is
// not admitted), clock (the test sets it), restart, wipe, expel, counters=TIME. On other nodes the scenario is
// skipped. Only the first line of a block may be one of these:
//
//	after TIME    the time passes; on a real clock the block is repeated until it prints what is expected
//	within TIME   on a real clock the scenario ends here if the block took longer
//	batch         the operations are one batch
//	every LIST    the block is executed for each text of a list of lists.go, as $it; all print the same
//
// The other commands, with their words, are in the table of commands.
//
// # What is Go
//
// Concurrency, capacity and odd names are tested in Go, by Run. [Differential] compares a node with the Model
// in random sequences.
package nodetest
