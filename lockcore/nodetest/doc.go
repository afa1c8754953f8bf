// Package nodetest is the suite that every kind of node passes, and [Model], a node in
// memory for tests of what runs above it.
//
// # The rules
//
// What one node does is text: a file a rule in the folder rules, whose head states the rule.
// [Run] runs every file unchanged against every kind of node: each operation alone, and each
// in a batch between strangers' operations. The simulation runs them on its own nodes. The
// printed replies are the same everywhere. A file has scenarios, each on a node of its own:
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
// Each line prints its reply below the ----, but commands that only prepare something print
// nothing. In this folder and in lockcore/replica, go test -rewrite writes what is printed
// now: read the difference before you keep it. A word with blanks is quoted as in Go.
//
// Numbers are relative. Token +1 is one above the high-water mark when the node was admitted,
// -1 one below; epoch E is the one in which it was admitted. "max" is the last token, and
// "reach" the largest that the node believes. A time is printed as the one that a command
// gave, while it can be the rest of it.
//
// Operations ([node.Op]) are acquire, confirm, extend, release, release-after, break, retract,
// read, enqueue, dequeue, forget and heartbeat. Their words are in the table of operations;
// pairs set the other fields: for=TIME, meta=, try=ATTEMPT, scope=, above=TOKEN, ticket=NAME,
// server=, epoch=, map=. The usual TTL is a minute, and the metadata of L1's lock are "L1's".
//
// The first block of a scenario may be "node", with what the scenario needs: blank (a node
// that holds nothing, and is not admitted), clock (the test sets it), restart, wipe, expel,
// counters=TIME. On other nodes the scenario is left out. The first line of a
// block, and no other, may be
//
//	after TIME    the time passes; on a real clock the block is repeated until it prints what is expected
//	within TIME   on a real clock the scenario ends here if the block took longer
//	batch         the operations are one batch
//	every LIST    the block is done for each text of a list of lists.go, as $it; all print the same
//
// The other commands are in the table of commands, each with its words.
//
// # What is Go
//
// Concurrency, capacity and odd names are Go tests of Run. [Differential] compares a node with
// the Model in random sequences.
package nodetest
