package zkstore

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/storage/optimistic"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// isConflict reports that a znode has changed since this server read it.
func isConflict(err error) bool {
	return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNodeExists) || errors.Is(err, zk.ErrNoNode)
}

// passing reports failures that may not happen again. The request may have taken effect.
func passing(err error) bool {
	if err == nil || isConflict(err) || errors.As(err, new(*optimistic.ConflictError)) || errors.As(err, new(*foreignError)) {
		return false
	}
	for _, final := range []error{
		errUncertain, errBuffer, errForeign, errFormer, errCorrupt,
		zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL, zk.ErrInvalidPath, zk.ErrBadArguments, zk.ErrNoChildrenForEphemerals, zk.ErrShortBuffer,
	} {
		if errors.Is(err, final) {
			return false
		}
	}
	return true
}

var errBuffer = fmt.Errorf("the servers close the connection on a request of %d kB: their jute.maxbuffer is too small. "+
	"Set it to its default of 1 MB or more on every server of the ensemble, and restart them (-Djute.maxbuffer=1048575)", maxRequest>>10)

var (
	errForeign = errors.New("holds data that are not fencelock's: name the path of the servers that run; a new cluster needs a path of its own")
	errFormer  = errors.New("the locks below the path are those of another version of fencelock: run that version, or stop all servers and follow docs/how-to/upgrade.md#upgrade-or-restart-servers. " +
		"A server with other locks beside them would grant what they hold")
	errCorrupt = errors.New("it cannot be read")
)

// foreignError says that the path contains data of another program, or of another version.
type foreignError struct {
	path string
	what string // "" for data of fencelock itself
}

func (e *foreignError) Error() string {
	if e.what == "" {
		return e.path + " " + errForeign.Error()
	}
	return fmt.Sprintf("%s %s (the znode %s is not fencelock's)", e.path, errForeign, e.what)
}

// explained adds advice to an error of Open.
func (s *service) explained(err error, patience time.Duration) error {
	who := "the URL names no user and password"
	if s.target.user != "" {
		who = "perhaps the password of the user " + s.target.user + " is another one (ZooKeeper does not say)"
	}
	switch {
	case errors.Is(err, zk.ErrNoAuth):
		return fmt.Errorf("%s: no right to read, write, create and delete there: %s. Grant the user all of these on %s (setAcl): %w", s.target.path, who, s.target.path, err)
	case errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("%s: the servers do not accept the URL's user: digest authentication is not enabled: %w", s.target.path, err)
	case !passing(err):
		return err
	}
	if why := s.session.connected(); why != nil {
		if waits := leaderless(s.target.hosts); waits != nil {
			return &replica.UnreachedError{Err: fmt.Errorf("the ensemble has no leader: %s runs, but serves no client until a majority of the ensemble runs: start the other servers: %w", strings.Join(waits, ", "), why)}
		}
		return &replica.UnreachedError{Err: fmt.Errorf("no server of %s opened a session within %s: %w. Check the addresses, and that a majority of the ensemble runs", strings.Join(s.target.hosts, ", "), patience, why)}
	}
	return &replica.UnreachedError{Err: err}
}

// minVersion is the oldest release that is supported.
var minVersion = [2]int{3, 6} //nolint:gochecknoglobals // never changed

// checkVersions refuses servers that report a version that is too old. It ignores servers that do not respond,
// or that may not report it (4lw.commands.whitelist).
func checkVersions(hosts []string) (said string, err error) {
	versions := askAll(hosts)
	for i, answer := range versions {
		if versions[i] = versionOf(answer); tooOld(versions[i]) {
			return "", fmt.Errorf("%s runs ZooKeeper %s: %d.%d is the oldest that is supported", hosts[i], versions[i], minVersion[0], minVersion[1])
		}
	}
	slices.Sort(versions)
	return strings.Join(slices.Compact(slices.DeleteFunc(versions, func(v string) bool { return v == "" })), ", "), nil
}

// leaderless returns the servers that report that they are not serving requests.
func leaderless(hosts []string) (wait []string) {
	for i, answer := range askAll(hosts) {
		if strings.Contains(answer, "not currently serving") {
			wait = append(wait, hosts[i])
		}
	}
	return wait
}

// askAll returns the servers' responses to srvr; "" for a server that does not respond.
func askAll(hosts []string) []string {
	var all sync.WaitGroup
	answers := make([]string, len(hosts))
	for i, host := range hosts {
		all.Go(func() { answers[i] = ask(host) })
	}
	all.Wait()
	return answers
}

func ask(host string) string {
	conn, err := net.DialTimeout("tcp", host, time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte("srvr")); err != nil {
		return ""
	}
	answer := make([]byte, 200)
	n, _ := conn.Read(answer)
	return string(answer[:n])
}

func versionOf(answer string) string {
	_, rest, found := strings.Cut(answer, "Zookeeper version: ")
	if !found {
		return ""
	}
	version, _, _ := strings.Cut(rest, "-")
	version, _, _ = strings.Cut(version, ",")
	return version
}

func tooOld(version string) bool {
	parts := strings.Split(version, ".")
	if len(parts) < 2 {
		return false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err1 == nil && err2 == nil && (major < minVersion[0] || major == minVersion[0] && minor < minVersion[1])
}
