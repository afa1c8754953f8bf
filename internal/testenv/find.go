package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/ory/dockertest/v3"
)

// program is a way to run a server on this machine.
type program struct {
	path string           // the Redis server, or the folder of PostgreSQL's programs
	pool *dockertest.Pool // not nil if there is no such program: then the image is run
}

// outside reports whether the server's network is not this machine's.
func (p program) outside() bool { return p.pool != nil && !sharesNetwork() }

// bind is the address on which the server has to listen.
func (p program) bind() string {
	if p.outside() {
		return "0.0.0.0" // inside the container; Docker publishes it on 127.0.0.1 only
	}
	return "127.0.0.1"
}

// peerHost is the name by which one server reaches another.
func (p program) peerHost() string {
	if p.outside() {
		return "host.docker.internal"
	}
	return "127.0.0.1"
}

// findRedis finds a way to run Redis.
func findRedis() (program, error) { return find(localRedis, RedisImage, "redis-server") }

// findPostgres finds a way to run PostgreSQL.
func findPostgres() (program, error) { return find(localPostgres, PostgresImage, "postgresql") }

// find tries an installed program, then Docker, then an installation.
func find(local func() string, image, pkg string) (program, error) {
	if err := awaitInstall(); err != nil {
		return program{}, err
	}
	if path := local(); path != "" {
		return program{path: path}, nil
	}
	pool, dockerErr := dockerPool(image)
	if dockerErr == nil {
		return program{pool: pool}, nil
	}
	path, err := findInstalled(local, pkg)
	if err != nil {
		return program{}, errors.Join(err, dockerErr)
	}
	return program{path: path}, nil
}

// findInstalled returns the path of the program. If the program is missing, findInstalled installs it if
// possible.
func findInstalled(local func() string, pkg string) (string, error) {
	if err := awaitInstall(); err != nil {
		return "", err
	}
	if path := local(); path != "" {
		return path, nil
	}
	if err := aptInstall([]string{pkg}, func() bool { return local() != "" }); err != nil {
		return "", fmt.Errorf("no %s on this machine (Debian: apt-get install %s): %w", pkg, pkg, err)
	}
	return local(), nil
}

// inSbin finds a program in PATH, or in the folder where Debian keeps programs that users do not need.
func inSbin(name string) func() string {
	return func() string {
		for _, name := range []string{name, "/usr/sbin/" + name} {
			if path, err := exec.LookPath(name); err == nil {
				return path
			}
		}
		return ""
	}
}

// localRedis returns the path of a Redis server program, or "".
func localRedis() string {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// localPostgres returns the folder with initdb and postgres, or "". Debian keeps them out of PATH. A postgres
// in PATH may be a link to a folder that contains initdb.
func localPostgres() string {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	brew, _ := filepath.Glob("/opt/homebrew/opt/postgresql@*/bin")
	dirs = append(dirs, brew...)
	if path, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	for _, dir := range slices.Backward(dirs) { // the newest version
		if isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres")) {
			return dir
		}
	}
	return ""
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
