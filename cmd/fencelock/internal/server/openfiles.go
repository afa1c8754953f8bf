package server

import "fmt"

// The process's file descriptors are divided, so that connections cannot keep the server from opening
// connections to its nodes, its files and the admin listener.
const (
	minReserve = 64
	maxReserve = 1024
)

// connectionLimits returns the maximum numbers of connections of the API and of the admin listener, if
// the process may open this many files; 0 means no limit, if that number is unknown.
func connectionLimits(files uint64) (public, admin int) {
	files = min(files, 1<<30)
	reserve := min(max(files/4, minReserve), maxReserve, files/2)
	return int(files - reserve), int(reserve / 4)
}

// remedy returns what an operator can do to allow more connections.
func remedy(files uint64) string {
	return fmt.Sprintf("raise the limit of open files, now %d (systemd: LimitNOFILE, Docker: --ulimit nofile, a shell: ulimit -n)", files)
}

// filesNote warns if the limit of open files is too low for the settings.
func filesNote(files uint64, waiters int) []string {
	public, _ := connectionLimits(files)
	if files == 0 || public >= waiters {
		return nil
	}
	return []string{fmt.Sprintf("the API accepts %d connections, too few for FENCELOCK_MAX_WAITERS=%d requests that wait over HTTP/1: %s", public, waiters, remedy(files))}
}
