package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/fencelock/fencelock/internal/testenv"
)

// consolePatience is for what a busy machine shows late. What has to be shown
// within a second is measured by the page itself.
const consolePatience = 30 * time.Second

// page is the console in a real Chromium. Whatever the browser complains of
// (a violated policy, an error of the script, a file that is not there) fails
// the test, and so does a request to anywhere else.
type page struct {
	t   *testing.T
	p   *process
	ctx context.Context

	mu       sync.Mutex
	complain []string
	expected []string // parts of complaints that the test provokes
}

func openConsole(t *testing.T, p *process) *page {
	t.Helper()
	c := newPage(t, p)
	c.run("open the console", chromedp.Navigate(p.url+"/console"))
	c.wait("the page follows", `document.querySelector('#link').textContent.includes('live')`)
	return c
}

func newPage(t *testing.T, p *process) *page {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(testenv.Browser(t)), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 3*time.Minute)
	t.Cleanup(cancel)
	c := &page{t: t, p: p, ctx: ctx}
	chromedp.ListenTarget(ctx, c.listen)
	c.run("start the browser", network.Enable(), log.Enable(), runtime.Enable(), chromedp.EmulateViewport(1360, 800))
	t.Cleanup(c.complaints)
	return c
}

func (c *page) listen(event any) {
	switch e := event.(type) {
	case *log.EventEntryAdded:
		c.note(fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *runtime.EventExceptionThrown:
		c.note("exception: " + e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning || e.Type == runtime.APITypeAssert {
			c.note(fmt.Sprintf("console.%s: %+v", e.Type, e.Args))
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, c.p.url+"/") && e.Request.URL != "about:blank" {
			c.note("request to " + e.Request.URL)
		}
	}
}

func (c *page) note(complaint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.complain = append(c.complain, complaint)
}

// expect lets complaints with this text pass.
func (c *page) expect(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expected = append(c.expected, text)
}

func (c *page) complaints() {
	c.mu.Lock()
	defer c.mu.Unlock()
next:
	for _, complaint := range c.complain {
		for _, text := range c.expected {
			if strings.Contains(complaint, text) {
				continue next
			}
		}
		c.t.Errorf("the browser complains: %s", complaint)
	}
}

func (c *page) run(what string, actions ...chromedp.Action) {
	c.t.Helper()
	if err := chromedp.Run(c.ctx, actions...); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// wait waits until the JavaScript expression is true.
func (c *page) wait(what, expression string) {
	c.t.Helper()
	err := chromedp.Run(c.ctx, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(consolePatience)))
	if err != nil {
		c.shot("failed")
		c.t.Fatalf("%s: %v; the page says:\n%s", what, err, c.text("body"))
	}
}

func (c *page) text(selector string) (text string) {
	c.t.Helper()
	c.eval(fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ''`, selector), &text)
	return text
}

func (c *page) eval(expression string, result any) {
	c.t.Helper()
	c.run(expression, chromedp.Evaluate(expression, result))
}

func (c *page) keys(what string, keys ...string) {
	c.t.Helper()
	for _, key := range keys {
		c.run(what, chromedp.KeyEvent(key)) // a text is typed, key by key
	}
}

// shot saves a picture to the folder FENCELOCK_TEST_SHOTS, if there is one.
func (c *page) shot(name string) {
	dir := os.Getenv("FENCELOCK_TEST_SHOTS")
	if dir == "" {
		return
	}
	var png []byte
	if err := chromedp.Run(c.ctx, chromedp.CaptureScreenshot(&png)); err != nil {
		c.t.Logf("no picture %s: %v", name, err)
		return
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// shots takes pictures in light and dark.
func (c *page) shots(name string) {
	if os.Getenv("FENCELOCK_TEST_SHOTS") == "" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		c.run(scheme, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
		c.shot(name + "-" + scheme)
	}
}

// TestConsole goes through what the page shows and does, with the mouse and by
// keyboard, against the real service.
func TestConsole(t *testing.T) {
	p := start(t, "FENCELOCK_MAX_TTL=1h") // the locks outlast a slow test
	for i := range 14 {
		p.acquire(fmt.Sprintf(`{"resource":"orders/%d","holder":"worker-%d","ttl_ms":%d}`, 1000+37*i, i%5, 600_000+20_000*i))
	}
	c := openConsole(t, p)
	c.wait("all locks are there", `document.querySelectorAll('#rows tr').length == 14`)
	c.wait("the node is there", `document.querySelector('#nodes li.voting') != null`)

	// A change is shown within a second: the page notes when it drew it.
	c.eval(`window.drawn = new Promise((done) => new MutationObserver(() => {
		if (document.querySelector('#rows').innerText.includes('accounts/7')) done(Date.now());
	}).observe(document.querySelector('#rows'), { childList: true, subtree: true })); 0`, nil)
	lease := p.acquire(`{"resource":"accounts/7","holder":"billing","ttl_ms":600000,"metadata":{"job":1234}}`)
	granted := time.Now().UnixMilli()
	var drawn int64
	c.run("the new lock is drawn", chromedp.Evaluate(`window.drawn`, &drawn, chromedp.EvalAsValue, func(e *runtime.EvaluateParams) *runtime.EvaluateParams {
		return e.WithAwaitPromise(true)
	}))
	t.Logf("the new lock was drawn %d ms after its grant", drawn-granted)
	if drawn-granted > 1000 {
		t.Errorf("the new lock was drawn %d ms after its grant", drawn-granted)
	}

	// By keyboard: search, down to the row, open it.
	waiter, stopWaiting := context.WithCancel(t.Context())
	defer stopWaiting()
	turn := p.waitsFor(waiter, "accounts/7", "invoicing", 10*time.Minute, 10*time.Minute)
	// The browser types no "/" once the page has taken the key; DevTools would.
	c.run("search", input.DispatchKeyEvent(input.KeyRawDown).WithKey("/").WithCode("Slash"), input.DispatchKeyEvent(input.KeyUp).WithKey("/").WithCode("Slash"))
	c.wait("the search has the keyboard", `document.activeElement.id == 'search'`)
	c.keys("type", "b", "i", "l", "l")
	c.wait("the list is narrowed", `document.querySelectorAll('#rows tr').length == 1`)
	c.keys("down and open", kb.ArrowDown, kb.Enter)
	c.wait("the details are shown", `document.querySelector('#detail-title').innerText == 'accounts/7' && document.querySelector('#detail').innerText.includes('billing')`)
	c.wait("the metadata is shown", `document.querySelector('#facts').innerText.includes('1234')`)
	c.wait("who waits is shown", `document.querySelector('#queue').innerText.includes('invoicing')`)
	c.wait("what happened is shown", `document.querySelector('#history').innerText.includes('granted')`)
	c.shots("lock")

	// Break it: nothing happens without the confirmation.
	c.run("ask to break", chromedp.Click("#break", chromedp.ByQuery))
	c.wait("the dialog says whose it is", `document.querySelector('#break-dialog').open && document.querySelector('#break-holder').innerText.includes('billing')`)
	c.shots("break")
	c.keys("no", kb.Enter) // the safe answer has the keyboard
	c.wait("the dialog is gone", `!document.querySelector('#break-dialog').open`)
	p.wants(p.ask(nil, "GET", "/leases/"+lease.LeaseID, ""), http.StatusOK)
	c.run("break", chromedp.Click("#break", chromedp.ByQuery), chromedp.Click("#break-confirm", chromedp.ByQuery))
	c.wait("it is broken", `document.querySelector('#history').innerText.includes('broken')`)
	c.wait("the next in line has it", `document.querySelector('#facts').innerText.includes('invoicing')`)
	p.wants(p.ask(nil, "GET", "/leases/"+lease.LeaseID, ""), http.StatusNotFound)
	second := (<-turn).lease
	if second.FencingToken <= lease.FencingToken {
		t.Errorf("token %d after %d", second.FencingToken, lease.FencingToken)
	}

	// A stale write, and the way back.
	p.wants(p.ask(nil, "PUT", "/guarded/accounts/7", "1", fmt.Sprint("Fencing-Token: ", second.FencingToken)), http.StatusOK)
	p.wants(p.ask(nil, "PUT", "/guarded/accounts/7", "2", fmt.Sprint("Fencing-Token: ", lease.FencingToken)), http.StatusPreconditionFailed)
	c.wait("the stale write is shown", `document.querySelector('#history').innerText.includes('stale write refused')`)
	p.wants(p.ask(nil, "DELETE", "/leases/"+second.LeaseID, ""), http.StatusNoContent)
	c.wait("it is free", `document.querySelector('#detail-state').innerText.includes('Free')`)
	c.keys("back", kb.Escape)
	c.wait("the overview is back", `document.querySelector('#detail').hidden && location.hash == '#/locks'`)
	c.eval(`document.querySelector('#search').value = ''; document.querySelector('#search').dispatchEvent(new Event('input')); 0`, nil)
	c.wait("all locks are back", `document.querySelectorAll('#rows tr').length == 14`)
	c.shots("locks")

	// What ends by itself.
	p.acquire(`{"resource":"short","ttl_ms":2000}`)
	c.wait("it expired", `document.querySelector('#feed').innerText.includes('expired short')`)

	// On a phone nothing sticks out.
	c.run("a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	for _, view := range []string{"#/locks", "#/locks/orders%2F1000", "#/race"} {
		c.eval(fmt.Sprintf(`location.hash = %q; 0`, view), nil)
		c.wait(view+" is as wide as the phone", `document.documentElement.scrollWidth <= 390 && document.title.startsWith({locks: 'Locks', 'locks/orders%2F1000': 'orders/1000', race: 'Race'}[location.hash.slice(2)])`)
		c.shots("phone-" + strings.NewReplacer("#/", "", "/", "-", "%2F", "-").Replace(view))
	}

	// Nothing secret has come to the page.
	var all string
	c.eval(`document.documentElement.outerHTML`, &all)
	for _, secret := range []string{lease.LeaseID, second.LeaseID} {
		if strings.Contains(all, secret) {
			t.Error("the page holds a lease id")
		}
	}
}

// TestConsoleRace lets two clients of the page race, one of them frozen past its lease.
func TestConsoleRace(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "proof.keys")
	if err := os.WriteFile(keys, []byte("k1 "+strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The strictest service: a token needs its proof, too.
	p := start(t, "FENCELOCK_PROOF_KEY_FILE="+keys, "FENCELOCK_PROOF_REQUIRED=true")
	c := openConsole(t, p)
	c.expect("status of 412") // the browser notes every refusal of the network
	c.expect("status of 404") // A gives its lease back, which has ended
	c.run("the race", chromedp.Click(`nav a[data-view="race"]`, chromedp.ByQuery))
	c.wait("its view", `!document.querySelector('#view-race').hidden`)
	if text := c.text("#view-race"); !strings.Contains(text, "Guarded") || strings.Contains(text, "Step by step") {
		t.Errorf("before the race: who runs is not shown, or steps are: %q", text)
	}
	c.eval(`document.querySelector('#run').focus(); 0`, nil)
	c.keys("run", kb.Enter)
	c.wait("it ends in a 412", `document.querySelector('#race-status').innerText.includes('412')`)
	for selector, says := range map[string]string{
		"#steps":         "412 Precondition Failed",
		"#guard-value":   "written by client B",
		"#guard-verdict": "Client B’s write is kept",
		"#plain-value":   "written by client A",
		"#plain-verdict": "Client B’s write is lost",
	} {
		if text := c.text(selector); !strings.Contains(text, says) {
			t.Errorf("%s says %q, and not %q", selector, text, says)
		}
	}
	c.shots("race")
	c.run("the steps", chromedp.ScrollIntoView("#steps", chromedp.ByQuery))
	c.shot("race-steps")
}

// TestConsoleAsksWhoYouAre shows the console where there is access control: to
// nobody, to who may read a part, and breaking to administrators alone.
func TestConsoleAsksWhoYouAre(t *testing.T) {
	t.Parallel()
	hash := func(secret string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(secret))) }
	file := filepath.Join(t.TempDir(), "access")
	rules := "reader token=sha256:" + hash("of-the-reader") + " read=orders/\nroot token=sha256:" + hash("of-the-root") + " admin=*\nend\n"
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "FENCELOCK_ACCESS_FILE="+file)
	root := "Authorization: Bearer of-the-root"
	for _, resource := range []string{"orders/1", "salaries/1"} {
		p.wants(p.ask(nil, "POST", "/locks", fmt.Sprintf(`{"resource":%q,"holder":"w","ttl_ms":60000}`, resource), root), http.StatusCreated)
	}
	c := newPage(t, p)
	c.expect("status of 401")
	c.expect("status of 403")
	c.run("open the console", chromedp.Navigate(p.url+"/console"))
	c.wait("it asks who looks", `document.querySelector('#access-dialog').open && document.activeElement.id == 'bearer'`)
	c.keys("type the token", "of-the-reader", kb.Enter)
	c.wait("the reader's part is shown", `document.querySelector('#rows').innerText.includes('orders/1')`)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"salaries/2","holder":"w"}`, root), http.StatusCreated)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"orders/2","holder":"w"}`, root), http.StatusCreated)
	c.wait("what it may read comes", `document.querySelector('#rows').innerText.includes('orders/2')`)
	if all := c.text("body"); strings.Contains(all, "salaries") {
		t.Errorf("it shows what the reader may not read:\n%s", all)
	}
	tryToBreak := func() {
		c.eval(`location.hash = '#/locks/orders%2F1'; 0`, nil)
		c.wait("the lock is shown", `document.querySelector('#detail-title').innerText == 'orders/1' && !document.querySelector('#break').hidden`)
		c.run("break", chromedp.Click("#break", chromedp.ByQuery), chromedp.Click("#break-confirm", chromedp.ByQuery))
	}
	tryToBreak()
	c.wait("it may not", `document.querySelector('#break-problem').innerText.includes('administrator')`)
	c.keys("away", kb.Escape)

	c.run("be the administrator", chromedp.Click("#access", chromedp.ByQuery))
	c.keys("type the token", "of-the-root", kb.Enter)
	c.eval(`location.hash = '#/locks'; 0`, nil)
	c.wait("all is shown", `document.querySelector('#rows').innerText.includes('salaries/2')`)
	tryToBreak()
	c.wait("it is broken", `document.querySelector('#history').innerText.includes('broken')`)

	c.run("forget it", chromedp.Click("#access", chromedp.ByQuery), chromedp.Click("#access-forget", chromedp.ByQuery))
	c.wait("nothing is shown any more", `document.querySelector('#access-dialog').open && !document.body.innerText.includes('salaries')`)
}

// TestConsoleComesBack kills the server under the page, and starts it again.
func TestConsoleComesBack(t *testing.T) {
	t.Parallel()
	env := []string{"FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "locks.db"), fmt.Sprintf("FENCELOCK_LISTEN=127.0.0.1:%d", testenv.FreePort(t))}
	p := start(t, env...)
	p.acquire(`{"resource":"before","ttl_ms":60000}`)
	c := openConsole(t, p)
	for _, noise := range []string{"net::ERR_", "status of 503"} { // while it is away, and while it gets ready
		c.expect(noise)
	}
	c.wait("the lock is there", `document.querySelector('#rows').innerText.includes('before')`)
	p.kill()
	c.wait("it says that the server is away", `document.querySelector('#link').innerText.includes('lost')`)
	p = start(t, env...)
	c.wait("it is back", `document.querySelector('#link').innerText.includes('live')`)

	// Names are shown as they are, whatever they are made of.
	const name = `<img src=x onerror=alert(1)>`
	p.acquire(fmt.Sprintf(`{"resource":%q,"holder":%q,"ttl_ms":60000}`, name, "<script>alert(2)</script> 🔒 \u202e"))
	p.acquire(fmt.Sprintf(`{"resource":%q,"holder":%q,"ttl_ms":60000}`, strings.Repeat("W", 256), strings.Repeat("W", 256)))
	c.wait("the new lock is shown", fmt.Sprintf(`document.querySelector('#rows').innerText.includes(%q) && document.querySelector('#feed').innerText.includes(%q)`, name, name))
	c.run("open it", chromedp.Click(`#rows tr button[title^="<img"]`, chromedp.ByQuery))
	c.wait("it is shown", fmt.Sprintf(`document.querySelector('#detail-title').innerText == %q`, name))
	c.shot("names")
	c.run("a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	c.wait("nothing sticks out", `document.documentElement.scrollWidth <= 390`)
	c.eval(`location.hash = '#/locks'; 0`, nil)
	c.wait("nothing sticks out of the list", `document.title.startsWith('Locks') && document.documentElement.scrollWidth <= 390`)
	c.shot("names-phone")
}
