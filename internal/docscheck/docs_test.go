package docscheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// blockLimit bounds a block; the first one may have to compile the program.
const blockLimit = 3 * time.Minute

// Every page's commands do what the page says.
func TestDocs(t *testing.T) {
	testenv.NeedsServer(t)
	root := moduleRoot(t)
	bin := filepath.Dir(testenv.Program(t))
	for name, path := range pages(t, root) {
		blocks := slices.DeleteFunc(read(t, path), func(b Block) bool { return !b.Runs() })
		if len(blocks) > 0 {
			t.Run(name, func(t *testing.T) {
				if name != "README.md" {
					testenv.Long(t, "a command of this page that fails")
				}
				r := newReader(t, root, bin)
				r.provide(t, blocks)
				r.provideInstallers(t, blocks)
				r.follow(t, blocks)
			})
		}
	}
}

// besideCode are the pages for contributors that are not below docs/.
var besideCode = []string{"bench/README.md", "chaos/README.md", "internal/sim/README.md", "internal/sim/defects.md"}

// pages are the pages for users, and then those for contributors: names and paths.
func pages(t *testing.T, root string) iter.Seq2[string, string] {
	t.Helper()
	names := []string{"README.md", "examples/README.md"}
	for _, folder := range []string{"docs", "site/content/quickstart"} {
		err := fs.WalkDir(os.DirFS(root), folder, func(name string, _ fs.DirEntry, err error) error {
			if path.Ext(name) == ".md" {
				names = append(names, name)
			}
			return err
		})
		if err != nil || len(names) < 10 {
			t.Fatalf("only the pages %q: %v", names, err)
		}
	}
	names = append(names, besideCode...)
	return func(yield func(string, string) bool) {
		for _, name := range names {
			if !yield(name, filepath.Join(root, filepath.FromSlash(name))) {
				return
			}
		}
	}
}

func moduleRoot(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func read(t *testing.T, path string) []Block {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := Blocks(string(text))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return blocks
}

// reader follows one page: in one shell, so that what a block sets is there in
// the next one.
type reader struct {
	root, dir string
	env       []string
	state     string // a file with the shell's variables and functions
	service   string // its URL
	stop      func() // ends the service that runs
	replace   *strings.Replacer
}

// What pages write, and what is there when they are followed.
func newReader(t *testing.T, root, bin string) *reader {
	t.Helper()
	dir := t.TempDir()
	public, admin := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	r := &reader{root: root, dir: dir, stop: func() {}, state: filepath.Join(dir, "state.sh"), service: "http://" + public}
	r.replace = strings.NewReplacer("http://127.0.0.1:8080", r.service, "http://localhost:8080", r.service, "http://127.0.0.1:8081", "http://"+admin)
	r.env = append(os.Environ(),
		"PATH="+filepath.Join(dir, "bin")+":"+bin+":"+os.Getenv("PATH"), "FENCELOCK_LISTEN="+public, "FENCELOCK_ADMIN_LISTEN="+admin,
		"FENCELOCK_URL="+r.service, "FENCELOCK_DATA="+filepath.Join(dir, "fencelock.db"), "WORK="+dir, "HOME="+home(t),
	)
	r.env = append(r.env, installs(root, dir)...)
	return r
}

// shop is the database of all pages, for its owner and for a superuser.
const (
	shop      = "postgres://owner@localhost/shop"
	superShop = "postgres://postgres@localhost/shop"
)

// provide starts what the blocks speak of.
func (r *reader) provide(t *testing.T, blocks []Block) {
	t.Helper()
	if !slices.ContainsFunc(blocks, func(b Block) bool {
		return b.Skipped == "" && (b.Lang == "sql" || strings.Contains(b.Text, shop))
	}) {
		return
	}
	pg := testenv.Postgres(t)
	r.env = append(r.env, "SHOP="+pg.OwnerURL())
	urls := strings.NewReplacer(shop, "'"+pg.OwnerURL()+"'", superShop, "'"+pg.URL()+"'")
	for i := range blocks {
		blocks[i].Text = urls.Replace(blocks[i].Text)
	}
}

// home stays what it is: Go's caches are there.
func home(t *testing.T) string {
	t.Helper()
	dir, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (r *reader) follow(t *testing.T, blocks []Block) {
	t.Helper()
	for _, b := range blocks {
		switch {
		case b.Skipped != "":
			t.Logf("line %d: not run: %s", b.Line, b.Skipped)
		case b.Serve:
			r.serve(t, b)
		default:
			r.run(t, b)
		}
		if t.Failed() {
			return
		}
	}
}

// run runs a block to its end.
func (r *reader) run(t *testing.T, b Block) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), blockLimit)
	defer cancel()
	cmd := r.shell(ctx, b)
	out, err := cmd.CombinedOutput()
	if (err != nil) != b.Fails {
		t.Errorf("line %d: ends with %v\n%s\n%s", b.Line, err, b.Text, out)
		return
	}
	for _, want := range b.Prints {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("line %d: prints no %q, but\n%s", b.Line, want, out)
		}
	}
	t.Logf("line %d: run", b.Line)
}

// shell is a shell in a process group of its own, in the state in which the
// block before left it.
func (r *reader) shell(ctx context.Context, b Block) *exec.Cmd {
	if b.Lang == "sql" {
		b.Text = "psql -X -v ON_ERROR_STOP=1 -v VERBOSITY=verbose \"$SHOP\" <<'--END'\n" + b.Text + "--END\n"
	}
	script := fmt.Sprintf("set -eo pipefail\n[ ! -e %[1]s ] || . %[1]s >/dev/null 2>&1\n%[2]s\n{ declare -p | grep -v '^declare -[a-zA-Z]*r'; declare -f; } >%[1]s\n", r.state, r.replace.Replace(b.Text))
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = r.dir, r.env
	if b.Root {
		cmd.Dir = r.root
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

// serve runs a block until the page has been followed, or the next one serves.
func (r *reader) serve(t *testing.T, b Block) {
	t.Helper()
	r.stop()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var out testenv.Buffer
	cmd := r.shell(ctx, b)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	r.stop = func() { stop(); <-ended }
	t.Cleanup(r.stop)
	testenv.Eventually(t, blockLimit, func() error {
		select {
		case <-ended:
			t.Fatalf("line %d: the service ended:\n%s\n%s", b.Line, b.Text, out.String())
		default:
		}
		resp, err := http.Get(r.service + "/readyz")
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("/readyz answers %d", resp.StatusCode)
		}
		return errors.Join(err, resp.Body.Close())
	})
	t.Logf("line %d: serves", b.Line)
}

// Blocks are pasted, also into zsh, which knows no comments when it is interactive:
// a comment behind a command becomes its arguments, and one with a quote or an
// operator becomes more than a complaint.
func TestBlocksCanBePasted(t *testing.T) {
	for text, bad := range map[string]bool{
		"make test": false, "make test # all": true, "curl $api/#x": false, "sed 's/#/x/'": false,
		"# one second, and more": false, "# it's 1": true, "# a; b": true, "echo a\n  # (b)": true,
	} {
		if got := unpastable(text) != ""; got != bad {
			t.Errorf("%q is found bad: %t", text, got)
		}
	}
	for name, path := range pages(t, moduleRoot(t)) {
		for _, b := range read(t, path) {
			if line := unpastable(b.Text); b.Lang == "sh" && line != "" {
				t.Errorf("%s, block at line %d: the comment does not survive zsh: %s", name, b.Line, line)
			}
		}
	}
}

var (
	behind   = regexp.MustCompile(`\S\s+#(\s|$)`)
	operator = regexp.MustCompile("^\\s*#.*['\"`;&|<>()*?\\[]")
)

// unpastable is the first line with a comment that zsh would trip over.
func unpastable(text string) string {
	for line := range strings.Lines(text) {
		if behind.MatchString(line) || operator.MatchString(line) {
			return line
		}
	}
	return ""
}

// What the pages may say to this package.
func TestBlocks(t *testing.T) {
	page := strings.Join([]string{
		"text", "```sh", "true", "```", "```json", "{}", "```",
		"<!-- docs-check: prints a and b; lines 2 -->", "```sh", "false", "echo a b", "```",
		"<!-- docs-check: not run: no such thing here -->", "```sh", "false", "```",
		"<!-- docs-check: serve -->", "```sh", "fencelock serve", "```",
		"```sql", "SELECT 1;", "```", "<!-- docs-check: run; fails -->", "```sql", "SELECT;", "```",
		"<!-- docs-check: given a, b int; c string -->", "```go", "_ = a", "```",
	}, "\n")
	got, err := Blocks(page)
	if err != nil || len(got) != 7 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got[0].Text != "true\n" || got[1].Text != "echo a b\n" || len(got[1].Prints) != 2 || got[2].Skipped != "no such thing here" || !got[3].Serve ||
		got[4].Runs() || !got[5].Runs() || !got[5].Fails || got[6].Given != "a, b int; c string" {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{"```sh\ntrue", "<!-- docs-check: perhaps -->\n```sh\ntrue\n```", "<!-- docs-check: lines 2 -->\n```sh\ntrue\n```", "<!-- docs-check: run -->\n```go\n```"} {
		if got, err := Blocks(bad); err == nil {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}

// A page that is wrong is found out.
func TestWrongPages(t *testing.T) {
	root := moduleRoot(t)
	for name, b := range map[string]Block{
		"fails":           {Text: "false\n"},
		"fails at first":  {Text: "false\ntrue\n"},
		"prints else":     {Text: "echo 200\n", Prints: []string{"412"}},
		"fails in a pipe": {Text: "false | cat\n"},
	} {
		r := newReader(t, root, t.TempDir())
		cmd := r.shell(t.Context(), b)
		out, err := cmd.CombinedOutput()
		if err == nil && (len(b.Prints) == 0 || bytes.Contains(out, []byte(b.Prints[0]))) {
			t.Errorf("a block that %s is not found out", name)
		}
	}
}
