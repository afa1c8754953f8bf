package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Environment returns the node's data folder as DATA, for commands in the documentation.
func (r *Redis) Environment() []string { return []string{"DATA=" + r.dir} }

// Wipe deletes the data files of a node that is down.
func (r *Redis) Wipe() {
	r.t.Helper()
	r.mustBeDown("Wipe")
	for _, name := range []string{"appendonlydir", "dump.rdb"} {
		if err := os.RemoveAll(filepath.Join(r.dir, name)); err != nil {
			r.t.Fatalf("testenv: Wipe %s: %v", r.addr, err)
		}
	}
}

// TruncateAOF cuts the last n bytes off the append-only file of a node that is down, like a power failure
// before the last writes were synced. If the file is shorter, it becomes empty.
func (r *Redis) TruncateAOF(n int64) {
	r.t.Helper()
	r.mustBeDown("TruncateAOF")
	if err := truncateAOF(filepath.Join(r.dir, "appendonlydir"), n); err != nil {
		r.t.Fatalf("testenv: TruncateAOF %s: %v", r.addr, err)
	}
}

// truncateAOF truncates the file to which Redis appended last.
func truncateAOF(dir string, n int64) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.incr.aof"))
	if err != nil {
		return err
	}
	var last os.FileInfo
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return err
		}
		if last == nil || info.ModTime().After(last.ModTime()) {
			last = info
		}
	}
	if last == nil {
		return errors.New("the node has no append-only file; start it with a persistence that writes one")
	}
	return os.Truncate(filepath.Join(dir, last.Name()), max(0, last.Size()-n))
}

// FlushAll deletes all data of all databases with FLUSHALL.
func (r *Redis) FlushAll() {
	r.t.Helper()
	r.command("flushall")
}

// ReplicaOf makes the node a replica of another node, and returns when it has that node's data. A restart
// does not change the role.
func (r *Redis) ReplicaOf(master *Redis) {
	r.t.Helper()
	r.role(r.prog.peerHost(), master.port())
	Eventually(r.t, readyWithin, r.inStep)
}

// Promote makes a replica a master. A restart does not change the role.
func (r *Redis) Promote() {
	r.t.Helper()
	r.role("no", "one")
}

// role changes the role and writes it to redis.conf.
func (r *Redis) role(host, port string) {
	r.t.Helper()
	r.mustBeOwn("change the role of")
	r.config.replicaOf = nil
	r.command("replicaof", host, port)
	r.command("config", "rewrite")
}

// inStep returns nil if a replica is connected to its master and has its data.
func (r *Redis) inStep() error {
	info, err := r.do("info", "replication").Text()
	if err != nil {
		return err
	}
	if !strings.Contains(info, "master_link_status:up") {
		return fmt.Errorf("replica %s is not in step with its master", r.addr)
	}
	return nil
}

// command sends a command, and fails the test if the command fails.
func (r *Redis) command(args ...any) {
	r.t.Helper()
	if err := r.do(args...).Err(); err != nil {
		r.t.Fatalf("testenv: %v at Redis %s: %v", args, r.addr, err)
	}
}

// mustBeDown fails the test if the server is running, because its files must not be changed then.
func (r *Redis) mustBeDown(what string) {
	r.t.Helper()
	r.mustBeOwn(what)
	if running(r.srv) {
		r.t.Fatalf("testenv: %s: %s is running; Kill it first", what, r.name)
	}
}
