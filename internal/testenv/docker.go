package testenv

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// The images that run where the programs are not installed.
const (
	RedisImage    = "redis:7.4-alpine"
	PostgresImage = "postgres:17"
)

// docker gives one command to Docker and returns what it prints.
func docker(args ...string) (string, error) {
	out, err := exec.Command("docker", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", args[0], err, tail(string(out), 3))
	}
	return string(out), nil
}

// pull makes sure that Docker has the image.
func pull(image string) error {
	if _, err := docker("image", "inspect", image); err == nil {
		return nil
	}
	_, err := docker("pull", "--quiet", image)
	return err
}

// container is a server in Docker. On Linux it shares the machine's network, so that
// addresses mean the same inside and outside.
type container struct {
	name string
	dir  string
	done chan struct{}
}

// newContainer makes a container that does not run yet. Options are those of docker
// create, args the program's.
func newContainer(dir, image string, port int, env, options, args []string) (*container, error) {
	c := &container{name: "fencelock-test-" + strings.ToLower(rand.Text()[:12]), dir: dir}
	create := []string{"create", "--name", c.name}
	if sharesNetwork() {
		create = append(create, "--network=host")
	} else {
		create = append(create, fmt.Sprintf("--publish=127.0.0.1:%d:%d", port, port))
	}
	for _, pair := range env {
		create = append(create, "--env="+pair)
	}
	create = append(append(create, options...), image)
	if _, err := docker(append(create, args...)...); err != nil {
		return nil, err
	}
	return c, nil
}

// sharesNetwork says whether containers use the machine's own network.
func sharesNetwork() bool { return runtime.GOOS == "linux" }

func (c *container) start() error {
	if _, err := docker("start", c.name); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = docker("wait", c.name)
	}()
	c.done = done
	return writeReap(c.dir, "docker rm -f -v "+c.name)
}

func (c *container) exited() <-chan struct{} { return c.done }

func (c *container) kill() error {
	if c.done == nil {
		return nil
	}
	return c.end("kill", c.name)
}

func (c *container) stop() error {
	_ = c.thaw() // it fails unless the container is frozen
	return c.end("stop", "--time="+strconv.Itoa(int(exitWithin/time.Second)), c.name)
}

// end gives a command that ends the container, frozen or not. One that is down already
// is no error.
func (c *container) end(command ...string) error {
	_, err := docker(command...)
	_ = c.thaw() // a frozen one ends only then
	select {
	case <-c.done:
		return nil
	case <-time.After(exitWithin):
		return errors.Join(err, fmt.Errorf("container %s still runs after %v", c.name, exitWithin))
	}
}

func (c *container) freeze() error {
	_, err := docker("pause", c.name)
	return err
}

func (c *container) thaw() error {
	_, err := docker("unpause", c.name)
	return err
}

func (c *container) logs() string {
	out, err := docker("logs", c.name)
	if err != nil {
		return err.Error()
	}
	return out
}

func (c *container) close() error {
	removeReap(c.dir)
	_, err := docker("rm", "--force", "--volumes", c.name)
	return err
}

// redisContainer runs redis-server as the test's own user, so that its files can be
// changed from outside.
func redisContainer(dir string, port int, env []string) (server, error) {
	base := filepath.Dir(dir)
	return newContainer(dir, RedisImage, port, env, []string{
		"--volume=" + base + ":" + base, fmt.Sprintf("--user=%d:%d", os.Getuid(), os.Getgid()),
		"--entrypoint=redis-server", "--stop-signal=SIGTERM",
	}, []string{filepath.Join(dir, "redis.conf")})
}

// postgresContainer keeps the data inside the container. SIGTERM would wait for the
// clients to disconnect.
func postgresContainer(dir string, port int, args []string) (server, error) {
	return newContainer(dir, PostgresImage, port, []string{"POSTGRES_HOST_AUTH_METHOD=trust"},
		[]string{"--stop-signal=SIGINT"}, append([]string{"postgres"}, args...))
}
