package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// taking is a process that takes one resource, says "here", and waits for another one after a line of input.
type taking struct {
	label, first, second string
	cmd                  *exec.Cmd
	stdin                io.WriteCloser
	out                  testenv.Buffer
}

// takes starts the process. Its label, its two resources and the server's URL are the script's arguments.
func (p *process) takes(label, first, second string, script ...string) *taking {
	p.t.Helper()
	w := &taking{label: label, first: first, second: second}
	w.cmd = exec.Command(script[0], append(script[1:], label, first, second, p.url)...)
	w.cmd.Env = append(os.Environ(), "FENCELOCK_URL="+p.url)
	w.cmd.Stdout, w.cmd.Stderr = &w.out, &w.out
	stdin, err := w.cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	w.stdin = stdin
	if err := w.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	})
	p.until(label+" has "+first, func() bool { return strings.Contains(w.out.String(), "here") })
	return w
}

// waits tells the process to wait for its second resource, and returns when it stands in the queue.
func (w *taking) waits(p *process) {
	p.t.Helper()
	if _, err := fmt.Fprintln(w.stdin); err != nil {
		p.t.Fatalf("%s: %v: %s", w.label, err, &w.out)
	}
	p.awaitWaiting(w.second, 1)
}

const pythonTakes = `
import sys
from fencelock import Client
label, first, second, url = sys.argv[1:]
client = Client(url, holder=label)
with client.lock(first, ttl=60):
    print("here", flush=True)
    sys.stdin.readline()
    with client.lock(second, ttl=60):
        print("done", flush=True)
`

const javaTakes = `
import io.github.fencelock.*;

class Takes {
    public static void main(String[] args) throws Exception {
        try (FencelockClient client = FencelockClient.builder(args[3]).holder(args[0]).build(); Lease first = client.lock(args[1])) {
            System.out.println("here");
            System.in.read();
            try (Lease second = client.lock(args[2])) {
                System.out.println("done");
            }
        }
    }
}
`

// goTakes uses the Go client, which is in fencelock run.
const goTakes = `
exec "$0" run --ttl 60s --holder "$1" "$2" -- sh -c 'echo here; read go; exec "$0" run --ttl 60s --holder "$1" "$2" -- echo done' "$0" "$1" "$3"
`

// Three processes with clients of three languages hold and want three resources. why does not call a chain a
// deadlock, and names the deadlock within two seconds.
func TestWhyInThreeLanguages(t *testing.T) {
	testenv.Long(t, "a client whose waits or labels the service does not see")
	p := start(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "takes.py"), pythonTakes)
	writeFile(t, filepath.Join(dir, "Takes.java"), javaTakes)
	libraries := testenv.Java(t, map[string]string{"jackson-core": "libjackson2-core-java"})
	t.Setenv("PYTHONPATH", absolute(t, "../../clients/python/src"))

	gopher := p.takes("gopher", "x", "y", "sh", "-c", goTakes, testenv.Program(t))
	python := p.takes("python", "y", "z", testenv.Pythons(t)[0].Path, filepath.Join(dir, "takes.py"))
	java := p.takes("java", "z", "x", "java", "-cp", filepath.Join(testenv.JavaClient(t), "fencelock-client.jar")+":"+libraries, filepath.Join(dir, "Takes.java"))
	gopher.waits(p)
	python.waits(p)
	for _, name := range []string{"", "x", "python", "java"} {
		if b := p.blockedBy(name); len(b.Deadlocks) > 0 {
			t.Errorf("%q: a chain is called a deadlock: %+v", name, b.Deadlocks)
		}
	}
	java.waits(p)
	since := time.Now()
	for _, name := range []string{"", "x", "y", "z", "gopher", "python", "java"} {
		b := p.blockedBy(name)
		var members []string
		for _, deadlock := range b.Deadlocks {
			for _, wait := range deadlock.Waits {
				members = append(members, wait.Holder+" waits for "+wait.Resource+" of "+wait.HeldBy)
			}
		}
		if want := []string{"java waits for x of gopher", "gopher waits for y of python", "python waits for z of java"}; !slices.Equal(members, want) {
			t.Errorf("%q: %v", name, members)
		}
		p.tool("", nil, strings.Fields("why "+name)...).wants(t, "why "+name, 1, "deadlock for ", "there is a deadlock")
	}
	t.Logf("seven names, by the API and by the command: %s", time.Since(since))

	lease := p.blockedBy("").Deadlocks[0].Break
	if lease.Holder != "java" {
		t.Errorf("the lease to break is %+v", lease)
	}
	p.tool("", nil, "break", "--yes", "--token", fmt.Sprint(lease.FencingToken), lease.Resource).wants(t, "break", 0, "is broken", "")
	for _, w := range []*taking{python, gopher} {
		p.until(w.label+" continues", func() bool { return strings.Contains(w.out.String(), "done") })
	}
}

func (p *process) blockedBy(name string) (b wire.Blocked) {
	p.t.Helper()
	p.wants(p.ask(&b, "GET", "/blocked?name="+url.QueryEscape(name), ""), 200)
	return b
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
