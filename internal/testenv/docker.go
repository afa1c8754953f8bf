package testenv

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

// The images that are run if the programs are not installed.
const (
	RedisImage    = "redis:7.4-alpine"
	PostgresImage = "postgres:17"
)

// pullWithin bounds the download of an image.
const pullWithin = 5 * time.Minute

// dockerPool connects to Docker and makes sure that it has the image.
func dockerPool(image string) (*dockertest.Pool, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, fmt.Errorf("connect to Docker: %w", err)
	}
	_, err = pool.Client.InspectImage(image)
	if err == nil {
		return pool, nil
	}
	if !errors.Is(err, docker.ErrNoSuchImage) {
		return nil, fmt.Errorf("ask Docker for %s: %w", image, err)
	}
	name, tag, _ := strings.Cut(image, ":")
	ctx, cancel := context.WithTimeout(context.Background(), pullWithin)
	defer cancel()
	err = pool.Client.PullImage(docker.PullImageOptions{Repository: name, Tag: tag, Context: ctx}, docker.AuthConfiguration{})
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", image, err)
	}
	return pool, nil
}

// container is a server in Docker. On Linux it shares the machine's network, so that
// addresses mean the same inside and outside.
type container struct {
	client *docker.Client
	name   string
	dir    string
	done   chan struct{}

	stopSignal docker.Signal // the signal for a graceful end
}

// newContainer makes a container that does not run yet. Binds are the folders that it
// shares with the machine, as "outside:inside".
func newContainer(
	pool *dockertest.Pool, dir string, port int, stop docker.Signal, config docker.Config, binds ...string,
) (*container, error) {
	c := &container{
		client: pool.Client, name: "fencelock-test-" + strings.ToLower(rand.Text()[:12]), dir: dir, stopSignal: stop,
	}
	host := &docker.HostConfig{Binds: binds}
	if sharesNetwork() {
		host.NetworkMode = "host"
	} else {
		inside := docker.Port(fmt.Sprintf("%d/tcp", port))
		config.ExposedPorts = map[docker.Port]struct{}{inside: {}}
		host.PortBindings = map[docker.Port][]docker.PortBinding{
			inside: {{HostIP: "127.0.0.1", HostPort: inside.Port()}},
		}
	}
	_, err := c.client.CreateContainer(docker.CreateContainerOptions{Name: c.name, Config: &config, HostConfig: host})
	if err != nil {
		return nil, fmt.Errorf("make a container of %s: %w", config.Image, err)
	}
	return c, nil
}

// sharesNetwork reports whether containers use the machine's own network.
func sharesNetwork() bool { return runtime.GOOS == "linux" }

func (c *container) start() error {
	if err := c.client.StartContainer(c.name, nil); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.client.WaitContainer(c.name)
	}()
	c.done = done
	return writeReap(c.dir, "docker rm -f -v "+c.name)
}

func (c *container) exited() <-chan struct{} { return c.done }

func (c *container) kill() error { return c.end(docker.SIGKILL) }

func (c *container) stop() error { return c.end(c.stopSignal) }

// end repeats the signal until the server has ended. It returns nil if the container is down already.
func (c *container) end(sig docker.Signal) error {
	if c.done == nil {
		return nil
	}
	var sent time.Time
	var err error
	return poll(exitWithin, func() error {
		select {
		case <-c.done:
			return nil
		default:
		}
		if time.Since(sent) > signalEvery {
			sent = time.Now()
			err = c.client.KillContainer(docker.KillContainerOptions{ID: c.name, Signal: sig})
			_ = c.thaw() // a frozen server acts on the signal only after it is thawed
		}
		return errors.Join(err, fmt.Errorf("container %s still runs after signal %d", c.name, sig))
	})
}

func (c *container) freeze() error { return c.client.PauseContainer(c.name) }

func (c *container) thaw() error { return c.client.UnpauseContainer(c.name) }

func (c *container) logs() string {
	var out bytes.Buffer
	err := c.client.Logs(docker.LogsOptions{
		Container: c.name, OutputStream: &out, ErrorStream: &out, Stdout: true, Stderr: true,
	})
	if err != nil {
		return err.Error()
	}
	return out.String()
}

func (c *container) close() error {
	removeReap(c.dir)
	return c.client.RemoveContainer(docker.RemoveContainerOptions{ID: c.name, Force: true, RemoveVolumes: true})
}

// redisContainer runs redis-server as the test's own user, so that its files can be
// changed from outside.
func redisContainer(pool *dockertest.Pool, dir string, port int, env []string) (server, error) {
	base := filepath.Dir(dir)
	return newContainer(pool, dir, port, docker.SIGTERM, docker.Config{
		Image: RedisImage, Env: env,
		User:       fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()),
		Entrypoint: []string{"redis-server"}, Cmd: []string{filepath.Join(dir, "redis.conf")},
	}, base+":"+base)
}

// postgresContainer keeps the data inside the container. It is stopped with SIGINT, because after a SIGTERM
// PostgreSQL would wait for the clients to disconnect.
func postgresContainer(pool *dockertest.Pool, dir string, port int, args []string) (server, error) {
	return newContainer(pool, dir, port, docker.SIGINT, docker.Config{
		Image: PostgresImage, Env: []string{"POSTGRES_HOST_AUTH_METHOD=trust"},
		Cmd: append([]string{"postgres"}, args...),
	})
}
