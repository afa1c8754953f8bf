package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// errByHand tells a person what to do if testenv cannot install a server.
var errByHand = errors.New("install redis-server, postgresql and mariadb-server, or start Docker, or name running servers in " +
	EnvRedisAddrs + ", " + EnvDatabaseURL + " and " + EnvMariaDBURL)

// aptInstall installs Debian packages, unless installed reports that they are there by now. Test packages run
// in parallel processes: one process installs, and the others wait for it. With a package, Debian also starts
// a server, which no test uses.
func aptInstall(pkgs []string, installed func() bool) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil || os.Getuid() != 0 {
		return errByHand
	}
	unlock, err := waitLock(aptLock())
	if err != nil {
		return err
	}
	defer unlock()
	if installed() {
		return nil
	}
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, pkgs...)} {
		if err := runApt(apt, args); err != nil {
			return errors.Join(err, errByHand)
		}
	}
	if !installed() {
		return fmt.Errorf("apt-get installed %v, but they were not found: %w", pkgs, errByHand)
	}
	return nil
}

// aptLock is the path of the lock under which packages are installed.
func aptLock() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("fencelock-testenv-apt-%d", os.Getuid()))
}

// awaitInstall waits while another process of this user installs a package: its files
// exist before they work.
func awaitInstall() error {
	unlock, err := waitLock(aptLock())
	if err != nil {
		return err
	}
	unlock()
	return nil
}

func runApt(apt string, args []string) error {
	cmd := exec.Command(apt, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %v: %w\n%s", args, err, tail(string(out), 10))
	}
	return nil
}
