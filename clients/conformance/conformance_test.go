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

func TestMain(m *testing.M) { testenv.Main(m) }

var other = flag.String("driver", "", "the command of one more driver, to test a client of your own")

var only = flag.String("only", "", "the first word of a client's name: judge those alone")

var playPending = flag.Bool("pending", false, "play the rows, too, that are pending for a language")

// essentials are what every client must get right first: an acquire, a retry, a wait, a loss and a
// release.
var essentials = []string{
	"nothing goes wrong", "the answer to an acquire is lost", "a server is down", "a wait", "the lease ends early", "no extend is answered", "the answer to a release is lost",
}

// One client of each language behaves correctly in the essentials.
func TestEssentials(t *testing.T) {
	run := slices.DeleteFunc(slices.Clone(scenarios), func(s scenario) bool { return !slices.Contains(essentials, s.name) })
	if len(run) != len(essentials) {
		t.Fatalf("of the essentials only %d are scenarios", len(run))
	}
	for _, find := range languages {
		t.Run(find.name, func(t *testing.T) {
			t.Parallel()
			Run(t, find.clients(t)[:1], run)
		})
	}
}

// Every client behaves correctly in every scenario. With -v the test prints the table.
func TestConformance(t *testing.T) {
	if *only == "" && *other == "" {
		testenv.Long(t, "a client, or a variant of one, that does wrong in a scenario beside the essentials")
	}
	found := false
	for _, language := range languages {
		if *only == "" || *only == language.name {
			found = true
			t.Run(language.name, func(t *testing.T) {
				t.Parallel()
				clients := language.clients(t)
				for i := range clients {
					clients[i].Pending = *playPending
				}
				Run(t, clients, everything())
			})
		}
	}
	if *other != "" {
		found = true
		Run(t, []Client{{Name: "yours", Command: strings.Fields(*other)}}, everything())
	}
	if !found {
		t.Fatalf("no client is called %q", *only)
	}
}

// languages lists the languages that have a client, with the variants of each client, the usual one
// first.
var languages = []struct {
	name    string
	clients func(*testing.T) []Client
}{
	{"go", func(t *testing.T) []Client {
		t.Helper()
		driver := testenv.Build(t, "./drivers/go")
		return []Client{{Name: "go", Command: []string{driver}}, {Name: "go, in batches", Command: []string{driver, "batches"}}}
	}},
	{"python", func(t *testing.T) []Client {
		t.Helper()
		driver := []string{testenv.Pythons(t)[0].Path, "../python/tests/driver.py"}
		return []Client{
			{Name: "python", Command: append(driver[:2:2], "sync")}, {Name: "python aio", Command: append(driver[:2:2], "aio")},
			{Name: "python aio, in batches", Command: append(driver[:2:2], "aio", "batches")},
		}
	}},
	{"typescript", func(t *testing.T) []Client {
		t.Helper()
		driver := []string{testenv.Node(t), "../typescript/tests/driver.mjs"}
		return []Client{{Name: "typescript", Command: driver}, {Name: "typescript, in batches", Command: append(driver[:2:2], "batches")}}
	}},
	{"java", func(t *testing.T) []Client {
		t.Helper()
		return []Client{{Name: "java", Command: javaDriver(t, t.TempDir()), AtOnce: 3}} // a virtual machine is slow to start, and slow at first
	}},
}

// Each pending row names a scenario of the table, so that a scenario that is renamed or removed leaves
// no pending row behind.
func TestPendingRowsExist(t *testing.T) {
	for language, rows := range pending {
		for name := range rows {
			if !slices.ContainsFunc(everything(), func(s scenario) bool { return s.name == name }) {
				t.Errorf("%s: there is no row %q", language, name)
			}
		}
	}
}

// The kit finds the mistakes that a first version of a client usually has: the naive driver breaks every
// rule in some scenario, and fails every scenario except the plain ones.
func TestKitFindsMistakes(t *testing.T) {
	testenv.Long(t, "that the kit itself finds nothing any more")
	plain := []string{"nothing goes wrong", "a wait", "two in a row"}
	broken := map[string]bool{}
	for _, r := range Table(t, []Client{{Name: "naive", Command: []string{testenv.Build(t, "./drivers/naive")}}}, everything()) {
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

// javaDriver compiles the driver of the Java client into a folder. It makes a class archive of what
// firstUses loads, and switches off what speeds up long runs but slows down the start.
func javaDriver(t *testing.T, dir string) (command []string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	classPath := strings.Join([]string{in("driver.jar"), filepath.Join(testenv.JavaClient(t), "fencelock-client.jar"), testenv.Java(t, map[string]string{"jackson-core": "libjackson2-core-java"})}, ":")
	java := []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable", "-cp", classPath}
	for _, command := range [][]string{
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
