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

// The images used where the programs are not installed.
const (
	RedisImage    = "redis:7.4-alpine"
	PostgresImage = "postgres:17"
)

// pullWithin bounds the download of an image.
const pullWithin = 5 * time.Minute

// dockerPool connects to Docker and sees to it that the image is there.
func dockerPool(image string) (*dockertest.Pool, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, err
	}
	if err := pool.Client.Ping(); err != nil {
		return nil, fmt.Errorf("docker does not answer: %w", err)
	}
	if _, err := pool.Client.InspectImage(image); err == nil {
		return pool, nil
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

// container is a server that runs in Docker. On Linux it shares the machine's
// network, so that addresses mean the same inside and outside.
type container struct {
	client *docker.Client
	name   string
	dir    string
	done   chan struct{}
}

// containerSpec is what differs between the servers.
type containerSpec struct {
	image string
	port  int
	user  string
	entry []string // nil for the image's own
	args  []string
	env   []string
	stop  string // the signal that ends it in order
	bind  bool   // give it the servers' folders, under the same paths
}

// newContainer makes a container that does not run yet.
func newContainer(pool *dockertest.Pool, dir string, spec containerSpec) (*container, error) {
	c := &container{
		client: pool.Client, dir: dir,
		name: "fencelock-test-" + strings.ToLower(rand.Text()[:12]),
	}
	port := docker.Port(fmt.Sprintf("%d/tcp", spec.port))
	_, err := c.client.CreateContainer(docker.CreateContainerOptions{
		Name: c.name,
		Config: &docker.Config{
			Image: spec.image, User: spec.user, Entrypoint: spec.entry, Cmd: spec.args, Env: spec.env,
			StopSignal: spec.stop, ExposedPorts: map[docker.Port]struct{}{port: {}},
		},
		HostConfig: hostConfig(filepath.Dir(dir), port, spec),
	})
	if err != nil {
		return nil, fmt.Errorf("make a container of %s: %w", spec.image, err)
	}
	return c, nil
}

func hostConfig(base string, port docker.Port, spec containerSpec) *docker.HostConfig {
	host := &docker.HostConfig{}
	if sharesNetwork() {
		host.NetworkMode = "host"
	} else {
		host.PortBindings = map[docker.Port][]docker.PortBinding{
			port: {{HostIP: "127.0.0.1", HostPort: port.Port()}},
		}
	}
	if spec.bind {
		host.Binds = []string{base + ":" + base}
	}
	return host
}

// sharesNetwork says whether containers use the machine's own network.
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

func (c *container) kill() error {
	if c.done == nil {
		return nil
	}
	err := c.client.KillContainer(docker.KillContainerOptions{ID: c.name, Signal: docker.SIGKILL})
	if _, down := errors.AsType[*docker.ContainerNotRunning](err); err != nil && !down {
		return err
	}
	_ = c.client.UnpauseContainer(c.name) // a paused one dies only then, at the latest
	return c.awaitExit()
}

func (c *container) stop() error {
	_ = c.client.UnpauseContainer(c.name) // most often it is not paused
	err := c.client.StopContainer(c.name, uint(exitWithin/time.Second))
	if _, down := errors.AsType[*docker.ContainerNotRunning](err); err != nil && !down {
		return err
	}
	return c.awaitExit()
}

func (c *container) awaitExit() error {
	select {
	case <-c.done:
		return nil
	case <-time.After(exitWithin):
		return fmt.Errorf("container %s still runs after %v", c.name, exitWithin)
	}
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

// redisContainer runs redis-server as the test's own user, so that the files it
// writes can be changed from outside.
func redisContainer(pool *dockertest.Pool, dir string, port int, env []string) (server, error) {
	return newContainer(pool, dir, containerSpec{
		image: RedisImage, port: port, env: env, bind: true, stop: "SIGTERM",
		user:  fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()),
		entry: []string{"redis-server"}, args: []string{filepath.Join(dir, "redis.conf")},
	})
}

// postgresContainer lets the image make its data folder, inside the container.
func postgresContainer(pool *dockertest.Pool, dir string, port int, args []string) (server, error) {
	return newContainer(pool, dir, containerSpec{
		image: PostgresImage, port: port, args: append([]string{"postgres"}, args...),
		stop: "SIGINT", // SIGTERM would wait for the clients to go
		env:  []string{"POSTGRES_HOST_AUTH_METHOD=trust"},
	})
}
