package testenv

import (
	"os"
	"syscall"
)

// inMemory returns a folder whose files are in memory, or "" if there is none with much room. A database with its
// 300 files takes a tenth of the processor time there that it takes on a disk. Servers are killed in tests and
// machines are not, so no test needs the disk; those that measure do, so make soak and make bench use it. TMPDIR
// overrides this, as it does for all temporary files.
func inMemory() string {
	const (
		folder = "/dev/shm"
		tmpfs  = 0x01021994
		room   = 4 << 30
	)
	var about syscall.Statfs_t
	err := syscall.Statfs(folder, &about)
	if os.Getenv("TMPDIR") != "" || os.Getenv(EnvTier) == soak || err != nil || about.Type != tmpfs || about.Bavail*uint64(about.Bsize) < room {
		return ""
	}
	return folder
}
