package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// own is a server that this process started, on ports and in a folder of its own.
type own struct {
	server
	name    string // for messages
	dir     string
	port    int      // for clients
	others  []int    // for other servers of its cluster
	release []func() // give up the reserved ports

	answers func() error // returns nil when the server responds
	taken   string       // the message that it prints if another program has its port
	// lingers means that after a kill the server's workers may live for a moment. Until they have ended, the
	// server refuses to start. awaitReady then starts it again.
	lingers bool
}

// startOwn starts a server on a free port. prepare writes the server's files, and sets the fields server and
// answers.
func startOwn(name string, prepare func(*own) error) (*own, error) {
	servers, err := startOwns(name, 1, 0, func(servers []*own) error { return prepare(servers[0]) })
	if err != nil {
		return nil, err
	}
	return servers[0], nil
}

// startOwns starts n servers of a cluster, each with so many ports for the others.
func startOwns(name string, n, others int, prepare func([]*own) error) ([]*own, error) {
	return onFreePort(func() (servers []*own, err error) {
		defer func() {
			if err != nil {
				for _, s := range servers {
					err = errors.Join(err, s.remove())
				}
				servers = nil
			}
		}()
		for range n {
			s, err := newOwn(name, others)
			if err != nil {
				return servers, err
			}
			servers = append(servers, s)
		}
		if err := prepare(servers); err != nil {
			return servers, err
		}
		return servers, startAll(servers)
	})
}

// startAll starts servers that do not run, and returns when all respond.
func startAll(servers []*own) (err error) {
	for _, s := range servers {
		err = errors.Join(err, s.start())
	}
	for _, s := range servers {
		if err == nil {
			err = s.awaitReady()
		}
	}
	return err
}

// newOwn reserves the ports of a server and makes its folder.
func newOwn(name string, others int) (s *own, err error) {
	s = &own{name: name, taken: "Address already in use", others: make([]int, others)}
	ports := []*int{&s.port}
	for i := range s.others {
		ports = append(ports, &s.others[i])
	}
	for _, port := range ports {
		var release func()
		if *port, release, err = reservePort(); err != nil {
			break
		}
		s.release = append(s.release, release)
	}
	if err == nil {
		s.dir, err = newServerDir(strings.ToLower(name))
	}
	if err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

func (s *own) addr() string { return localAddr(s.port) }

// awaitReady waits until a started server responds.
func (s *own) awaitReady() error {
	var final error
	err := poll(readyWithin, func() error {
		if running(s) {
			return s.answers()
		}
		early := fmt.Errorf("%s ended at once; it printed:\n%s", s.name, tail(s.logs(), 15))
		switch {
		case strings.Contains(s.logs(), s.taken):
			final = errors.Join(errPortTaken, early)
		case !s.lingers:
			final = early
		default:
			return errors.Join(early, s.start())
		}
		return nil
	})
	return errors.Join(final, err)
}

// cleanUp ends the server when its test is over.
func (s *own) cleanUp(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("testenv: last words of %s at %s:\n%s", s.name, s.addr(), tail(s.logs(), 10))
		}
		if err := s.remove(); err != nil {
			t.Errorf("testenv: clean up %s: %v", s.name, err)
		}
	})
}

// remove ends the server and removes all its traces.
func (s *own) remove() error {
	defer func() {
		for _, release := range s.release {
			release()
		}
	}()
	if s.dir == "" {
		return nil
	}
	var err error
	if s.server != nil {
		err = errors.Join(s.kill(), s.close())
	}
	// Orphaned workers may still write while they end.
	return errors.Join(err, poll(exitWithin, func() error { return os.RemoveAll(s.dir) }))
}

// ownedBy gives a folder to the user as whom a database runs. That is the test's own user, for which it
// returns nil, unless that user is root: databases refuse to run as root. Then it is the named user, or else
// nobody.
func ownedBy(name, dir string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // no credential is what exec takes for "as I am"
	}
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, int(uid), int(gid))
}
