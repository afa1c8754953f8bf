// Package testenv gives tests real servers: Redis nodes that can be killed,
// frozen, wiped and restarted on the same address, PostgreSQL databases of their own, and
// an nginx. [StartFencelock] starts the product's own server. [StartZooKeeper] starts ensembles; their program
// is looked for on this machine and installed with apt-get otherwise.
//
// A test that needs a server gets one or fails, because a test that was not run proves nothing and looks like
// one that passed. Only `go test -short` skips the test, because it excludes all tests that need a server. A
// server is looked for in this order:
//
//  1. The environment. [EnvRedisAddrs] lists Redis servers (host:port, comma
//     between them) and [EnvDatabaseURL] names a PostgreSQL server. Their data
//     is destroyed. Nothing here can kill or freeze them, so a test that calls
//     a control method such as [Redis.Kill] fails and says so.
//  2. The programs redis-server (or valkey-server) and postgres on this
//     machine, in PATH or where Debian and Homebrew put them.
//  3. Docker, with the images [RedisImage] and [PostgresImage].
//  4. On Debian and its relatives, as root: apt-get install, once a machine.
//
// Each server has a private data folder and is ended when its test ends, even if the server is frozen at that
// moment. It also ends when the test process dies without cleaning up (a panic, a time limit, kill -9): a
// small shell process watches the test process, ends the server and removes the data.
//
// Methods that control a server fail the test on error. They must be called from the test's own goroutine, as
// [testing.TB] requires.
package testenv
