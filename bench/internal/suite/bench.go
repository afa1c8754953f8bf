package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fencelock/fencelock/bench/internal/barehttp"
	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/rawhttp"
	"github.com/fencelock/fencelock/bench/internal/result"
	"github.com/fencelock/fencelock/bench/internal/stand"
	"github.com/fencelock/fencelock/internal/testenv"
)

// nodes is the number of Redis nodes.
const nodes = 5

// Each contender has a database of its own on the same Redis servers.
const (
	dbServer = iota
	dbInProcess
	dbRedsync
	dbRedislock
	dbBare
	dbBeside
	dbNetwork // the first of several
)

// bench is a set of servers and the contenders that run on it.
type bench struct {
	scope      *stand.Scope
	redis      *stand.Redis
	server     *stand.Fencelock // on redis
	inProcess  *peer.InProcess
	postgres   *stand.Postgres
	contenders map[string]contender
	aside      servers // servers that no contender uses
}

// open makes a bench without servers.
func (s *Suite) open(name string) *bench {
	b := &bench{scope: stand.NewScope(name, s.opts.Log), contenders: map[string]contender{}}
	s.benches = append(s.benches, b)
	return b
}

// close stops the servers of a bench, so that they use no processor time in later steps.
func (s *Suite) close(b *bench) {
	s.benches = slices.DeleteFunc(s.benches, func(other *bench) bool { return other == b })
	b.scope.Close()
}

// add adds a contender, which is closed with the bench.
func (b *bench) add(p peer.Peer, service, store servers) {
	b.contenders[p.Name()] = contender{peer: p, service: service, store: store}
	b.scope.Cleanup(func() { _ = p.Close() })
}

// CPU is the time of all its servers.
func (b *bench) CPU() (total time.Duration) {
	total = b.aside.CPU()
	counted := map[server]bool{}
	for _, c := range b.contenders {
		for _, each := range slices.Concat(c.service, c.store) {
			if !counted[each] {
				counted[each] = true
				total += each.CPU()
			}
		}
	}
	return total
}

const (
	settleStep   = 50 * time.Millisecond
	settleAtMost = 3 * time.Second
	settleShare  = 0.08 // the share of one processor below which the servers count as idle
)

// settle waits until the servers have finished the background work of the last round.
func (b *bench) settle(ctx context.Context) {
	for begun := time.Now(); time.Since(begun) < settleAtMost && ctx.Err() == nil; {
		before := b.CPU()
		time.Sleep(settleStep)
		if float64(b.CPU()-before) < settleShare*float64(settleStep) {
			return
		}
	}
}

// start builds the server, and starts the servers that do not sync Redis.
func (s *Suite) start(ctx context.Context) error {
	s.main = s.open("servers")
	dir, err := os.MkdirTemp("", "fencelock-bench-")
	if err != nil {
		return err
	}
	s.main.scope.Cleanup(func() { _ = os.RemoveAll(dir) })
	if s.program, err = stand.Build(ctx, s.opts.Root, dir); err != nil {
		return err
	}
	if err := s.startOthers(ctx, s.main); err != nil {
		return err
	}
	return s.startRedis(ctx, s.main, testenv.PersistNone)
}

// startRedis starts nodes and everything that runs on them.
func (s *Suite) startRedis(ctx context.Context, b *bench, mode testenv.Persistence) (err error) {
	if b.redis, err = stand.StartRedis(ctx, b.scope, nodes, mode); err != nil {
		return err
	}
	s.version("Redis", b.redis.Version)
	b.server, err = stand.StartFencelock(ctx, b.scope, s.program, b.redis.URLs(dbServer))
	if err != nil {
		return err
	}
	b.add(peer.NewHTTP(b.server.Addr), servers{b.server}, servers{b.redis})
	if err := s.addBeside(ctx, b); err != nil {
		return err
	}
	if err := s.addClients(b); err != nil {
		return err
	}
	if b.inProcess, err = peer.NewInProcess(b.redis.URLs(dbInProcess)); err != nil { //nolint:contextcheck // it ends with Close
		return err
	}
	b.add(b.inProcess, nil, servers{b.redis})
	if err := b.addLibraries(); err != nil {
		return err
	}
	if err := b.awaitVoting(ctx, nodes); err != nil {
		return err
	}
	return b.addFloors(ctx)
}

// addBeside adds the other build of the server, if there is one.
func (s *Suite) addBeside(ctx context.Context, b *bench) error {
	if s.opts.Beside == "" {
		return nil
	}
	other, err := stand.StartFencelock(ctx, b.scope, s.opts.Beside, b.redis.URLs(dbBeside))
	if err != nil {
		return err
	}
	b.add(peer.NewServers(result.Beside, other.Addr), servers{other}, servers{b.redis})
	return nil
}

// addClients adds fencelock's clients; the Go client is added both with and without batches.
func (s *Suite) addClients(b *bench) error {
	batches, err1 := peer.NewClient(result.GoClient, b.server.Addr)
	single, err2 := peer.NewSingleClient(result.GoClientSingle, b.server.Addr)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	b.add(batches, servers{b.server}, servers{b.redis})
	b.add(single, servers{b.server}, servers{b.redis})
	s.addPrograms(b)
	return nil
}

// addPrograms adds the clients in other languages whose interpreter is installed.
func (s *Suite) addPrograms(b *bench) {
	for _, p := range peer.Programs(s.opts.Root, b.server.Addr) {
		if err := p.Installed(); err != nil {
			s.note(fmt.Sprintf("%s is left out: %v", p.Name(), err))
			continue
		}
		b.contenders[p.Name()] = contender{peer: p, load: servers{p}, service: servers{b.server}, store: servers{b.redis}}
	}
}

// addFloors adds the floors: what fencelock can't be faster than.
func (b *bench) addFloors(ctx context.Context) error {
	bare, err := peer.NewBare(b.redis.URLs(dbBare)) //nolint:contextcheck // it ends with Close
	if err != nil {
		return err
	}
	b.add(bare, nil, servers{b.redis})
	answers, err := barehttp.Record(ctx, b.server.Addr, rawhttp.Host)
	if err != nil {
		return err
	}
	answering, err := stand.StartBareHTTP(ctx, b.scope, answers)
	if err != nil {
		return err
	}
	b.add(peer.NewBareHTTP(answering.Addr), servers{answering}, nil)
	return nil
}

func (b *bench) addLibraries() error {
	redsync, err1 := peer.NewRedsync(b.redis.URLs(dbRedsync))
	redislock, err2 := peer.NewRedislock(b.redis.URLs(dbRedislock)[0])
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	b.add(redsync, nil, servers{b.redis})
	b.add(redislock, nil, servers{b.redis})
	return nil
}

// awaitVoting waits until want nodes vote, both for the server and for fencelock in this process.
func (b *bench) awaitVoting(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := b.server.Voting(ctx, want)
		if n := b.inProcess.Voting(); err == nil && n != want {
			err = fmt.Errorf("in-process: %d of %d nodes vote", n, want)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(settleStep):
		}
	}
}

// wants reports whether one of the contenders is to be measured.
func (s *Suite) wants(names ...string) bool {
	return len(s.opts.With) == 0 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(s.opts.With, name) })
}

// startOthers starts the contenders that do not run on Redis.
func (s *Suite) startOthers(ctx context.Context, b *bench) (err error) {
	if s.wants(result.EtcdGRPC, result.EtcdJSON, result.HTTPEtcd) {
		if err := s.startEtcd(ctx, b); err != nil {
			return err
		}
	}
	if b.postgres, err = stand.StartPostgres(ctx, b.scope); err != nil {
		return err
	}
	s.version("Postgres", b.postgres.Version)
	rows, err := peer.NewRows(ctx, b.postgres.URL)
	if err != nil {
		return err
	}
	b.add(rows, nil, servers{b.postgres})
	if err := s.startOn(ctx, b, result.HTTPPostgres, b.postgres.URL, b.postgres); err != nil {
		return err
	}
	if s.wants(result.HTTPFile, result.BareFile) {
		if err := s.startFile(ctx, b); err != nil {
			return err
		}
	}
	if !s.wants(result.ZooKeeper, result.HTTPZooKeeper) {
		return nil
	}
	return s.startZooKeeper(ctx, b)
}

// startFile starts a server over the embedded file, and the bare loop beside it.
func (s *Suite) startFile(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp("", "fencelock-bench-")
	if err != nil {
		return err
	}
	b.scope.Cleanup(func() { _ = os.RemoveAll(dir) })
	own, err := stand.StartFencelockFile(ctx, b.scope, s.program, filepath.Join(dir, "fencelock.db"))
	if err != nil {
		return err
	}
	b.add(peer.NewServers(result.HTTPFile, own.Addr), servers{own}, nil)
	bare, err := peer.NewBolt(filepath.Join(dir, "bare.db"))
	if err != nil {
		return err
	}
	b.add(bare, nil, nil)
	return nil
}

// startOn starts another fencelock server, which keeps its locks in a store.
func (s *Suite) startOn(ctx context.Context, b *bench, name, address string, store server) error {
	own, err := stand.StartFencelockStore(ctx, b.scope, s.program, address)
	if err != nil {
		return err
	}
	b.add(peer.NewServers(name, own.Addr), servers{own}, servers{store})
	return nil
}

func (s *Suite) startZooKeeper(ctx context.Context, b *bench) error {
	zookeeper, err := stand.StartZooKeeper(b.scope)
	if err != nil {
		return err
	}
	recipe, err := peer.NewZooKeeper(zookeeper.Addr)
	if err != nil {
		return err
	}
	b.add(recipe, nil, servers{zookeeper})
	return s.startOn(ctx, b, result.HTTPZooKeeper, "zookeeper://"+zookeeper.Addr+"/fencelock", zookeeper)
}

// startEtcd starts etcd if there is one on this machine.
func (s *Suite) startEtcd(ctx context.Context, b *bench) error {
	etcd, err := stand.StartEtcd(ctx, b.scope)
	if errors.Is(err, stand.ErrNoEtcd) {
		s.note(err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	s.version("etcd", etcd.Version(ctx))
	grpc, err := peer.NewEtcd(etcd.Addr)
	if err != nil {
		return err
	}
	b.add(grpc, servers{etcd}, nil)
	b.add(peer.NewEtcdJSON(etcd.Addr), servers{etcd}, nil)
	return s.startOn(ctx, b, result.HTTPEtcd, "etcd://"+etcd.Addr+"/bench-fencelock", etcd)
}

// startFsync starts a second set of Redis, which syncs every write to disk.
func (s *Suite) startFsync(ctx context.Context) error {
	s.fsync = s.open("synced servers")
	return s.startRedis(ctx, s.fsync, testenv.PersistAOFAlways)
}

func (s *Suite) version(name, version string) {
	for _, v := range s.set.Machine.Versions {
		if v.Name == name {
			return
		}
	}
	s.set.Machine.Versions = append(s.set.Machine.Versions, result.Version{Name: name, Version: version})
}
