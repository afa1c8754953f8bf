package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Ports are taken from below the range from which systems take the ports of outgoing connections (32768 and
// up on Linux, 49152 and up elsewhere). Listening on :0 would give a port in that range. While a killed
// server is down, an outgoing connection of any process could take that port. Then the server could not
// restart on the same address.
const (
	firstPort = 15000
	lastPort  = 31999
)

// reservePort picks a port of 127.0.0.1 on which no program listens and that no other test process has
// reserved. The reservation is a lock on a file, so it ends when this process ends, unless release ends it
// earlier.
func reservePort() (port int, release func(), err error) {
	dir := filepath.Join(os.TempDir(), "fencelock-testenv-ports-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, err
	}
	for range 500 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		release, err := tryLock(filepath.Join(dir, strconv.Itoa(port)))
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		if listenable(port) {
			return port, release, nil
		}
		release()
	}
	return 0, nil, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

// errPortTaken marks a start that failed because of its port.
var errPortTaken = errors.New("port taken")

// onFreePort calls start again, up to five times in all, while another program has taken the port that start
// chose.
func onFreePort[T any](start func() (T, error)) (server T, err error) {
	for range 5 {
		if server, err = start(); !errors.Is(err, errPortTaken) {
			break
		}
	}
	return server, err
}

// listenable reports whether a server could listen on the port now.
func listenable(port int) bool {
	l, err := net.Listen("tcp", localAddr(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// localAddr is the port's address on this machine.
func localAddr(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// errLocked is tryLock's error if another caller has the lock.
var errLocked = errors.New("another caller has the lock")

// tryLock locks a file between processes and between callers in one process,
// or returns errLocked at once.
func tryLock(path string) (unlock func(), err error) {
	return flock(path, syscall.LOCK_EX|syscall.LOCK_NB)
}

// waitLock is tryLock, but waits.
func waitLock(path string) (unlock func(), err error) {
	return flock(path, syscall.LOCK_EX)
}

func flock(path string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return func() { _ = f.Close() }, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// FreePort returns a port of 127.0.0.1 that no other test gets while this test runs.
func FreePort(t testing.TB) int {
	t.Helper()
	port, release, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}
