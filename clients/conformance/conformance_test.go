package conformance

import (
	"flag"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

var other = flag.String("driver", "", "the command of one more driver, to test a client of your own")

var only = flag.String("only", "", "the first word of a client's name: judge those alone")

// Every client does the right thing in every scenario. With -v it prints the table.
func TestConformance(t *testing.T) {
	inGo := buildDriver(t, "go")
	clients := []Client{{Name: "go", Command: []string{inGo}}, {Name: "go, in batches", Command: []string{inGo, "batches"}}}
	t.Run("find python", func(t *testing.T) { // tests of their own, so that what is not here is counted as skipped
		driver := []string{testenv.Pythons(t)[0].Path, "../python/tests/driver.py"}
		clients = append(clients, Client{Name: "python", Command: append(driver[:2:2], "sync")}, Client{Name: "python aio", Command: append(driver[:2:2], "aio")},
			Client{Name: "python aio, in batches", Command: append(driver[:2:2], "aio", "batches")})
	})
	t.Run("find node", func(t *testing.T) {
		driver := []string{testenv.Node(t), "../typescript/tests/driver.mjs"}
		clients = append(clients, Client{Name: "typescript", Command: driver}, Client{Name: "typescript, in batches", Command: append(driver[:2:2], "batches")})
	})
	dir := t.TempDir()
	t.Run("find java", func(t *testing.T) {
		clients = append(clients, Client{Name: "java", Command: javaDriver(t, dir), AtOnce: 3}) // a virtual machine takes long to start, and to get warm
	})
	if *other != "" {
		clients = append(clients, Client{Name: "yours", Command: strings.Fields(*other)})
	}
	clients = slices.DeleteFunc(clients, func(c Client) bool {
		first, _, _ := strings.Cut(c.Name, " ")
		return *only != "" && strings.TrimSuffix(first, ",") != *only
	})
	if len(clients) == 0 {
		t.Fatalf("no client is called %q", *only)
	}
	Run(t, clients)
}

// The kit finds the mistakes of a client as one is written first: it breaks every rule
// somewhere, and does wrong in every scenario but plain ones.
func TestKitFindsMistakes(t *testing.T) {
	plain := []string{"nothing goes wrong", "a wait", "two in a row"}
	broken := map[string]bool{}
	for _, r := range Table(t, []Client{{Name: "naive", Command: []string{buildDriver(t, "naive")}}}) {
		if len(r.Wrong) == 0 && !r.Unsupported && !slices.Contains(plain, r.Scenario) {
			t.Errorf("%s: it was not found wrong: %s; a client may have been late by %s here", r.Scenario, r.Did, r.late)
		}
		for _, wrong := range r.Wrong {
			name, _, _ := strings.Cut(wrong, ": ")
			broken[name] = true
		}
	}
	for _, rule := range rules {
		if !broken[rule.name] {
			t.Errorf("it did not break the rule %q", rule.name)
		}
	}
}

// javaDriver compiles the Java client and its driver into a folder. What they load in firstUses
// is in an archive of classes, and what makes a long run fast and a start slow is left out.
func javaDriver(t *testing.T, dir string) (command []string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	classPath := strings.Join([]string{in("driver.jar"), in("fencelock-client.jar"), testenv.Java(t, map[string]string{"jackson-core": "libjackson2-core-java"})}, ":")
	java := []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable", "-cp", classPath}
	for _, command := range [][]string{
		{"../java/build.sh", dir},
		{"javac", "-cp", classPath, "-d", in("driver"), "../java/src/test/java/io/github/fencelock/Driver.java"},
		{"jar", "--create", "--file", in("driver.jar"), "-C", in("driver"), "."},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	once := &drivers{t: t, client: Client{Name: "java", Command: slices.Concat(java, []string{"-XX:ArchiveClassesAtExit=" + in("driver.jsa"), "io.github.fencelock.Driver"})}}
	d := once.used(once.start())
	if d == nil {
		t.FailNow()
	}
	if err := d.end(); err != nil {
		t.Fatal(err)
	}
	return append(java, "-XX:SharedArchiveFile="+in("driver.jsa"), "io.github.fencelock.Driver")
}

// buildDriver builds a driver in Go.
func buildDriver(t *testing.T, name string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", bin, "./drivers/"+name).CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}
