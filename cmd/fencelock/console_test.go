package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
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

// consolePatience is how long a test waits for the page to show something on a busy machine. The page itself measures
// what it has to show within a second.
const consolePatience = patience

// page is the console in a real Chromium. The test fails if the browser complains (of a violated policy, an error of
// the script, or a missing file), or if the page sends a request to any other host.
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
	c.open("/console")
	c.wait("the page follows", `document.querySelector('#link').textContent.includes('live')`)
	return c
}

// networkChanged is the error with which the browser ends requests when the machine gets another network, such as one
// that another test made. The page connects again by itself, but the browser does not load a file again.
const networkChanged = "net::ERR_NETWORK_CHANGED"

// open loads a page of the server.
func (c *page) open(path string) {
	c.t.Helper()
	for before := -1; before != c.complained(networkChanged); {
		before = c.complained(networkChanged)
		c.run("leave the page", chromedp.Navigate("about:blank"))
		c.run("open "+path, chromedp.Navigate(c.p.url+path))
	}
}

// complained counts the complaints with this text.
func (c *page) complained(text string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, complaint := range c.complain {
		if strings.Contains(complaint, text) {
			n++
		}
	}
	return n
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
	ctx, cancel = context.WithTimeout(ctx, 6*time.Minute)
	t.Cleanup(cancel)
	c := &page{t: t, p: p, ctx: ctx}
	// A resource without a guarded record is not a mistake of the page.
	c.expect("status of 404 (Not Found) " + p.url + "/history?")
	c.expect(networkChanged)
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

// expect allows complaints with this text.
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
	poll := chromedp.Poll(expression, nil, chromedp.WithPollingInterval(20*time.Millisecond), chromedp.WithPollingTimeout(consolePatience))
	err := chromedp.Run(c.ctx, poll)
	for tries := 0; err != nil && tries < 10 && strings.Contains(err.Error(), "Cannot find context"); tries++ {
		err = chromedp.Run(c.ctx, poll) // DevTools still meant the document before
	}
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

// look goes to a place of the page.
func (c *page) look(hash string) {
	c.t.Helper()
	c.eval(fmt.Sprintf(`location.hash = %q; 0`, hash), nil)
}

func (c *page) click(what, selector string) {
	c.t.Helper()
	c.run(what, chromedp.Click(selector, chromedp.ByQuery))
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
	c.wait("the node is there", `document.querySelector('#strip .voting') != null`)

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
	c.wait("the chosen row is announced", `document.querySelector('#rows tr.chosen [aria-current=true]').innerText == 'accounts/7'`)
	c.shots("lock")

	// Break it: nothing happens without the confirmation.
	c.run("ask to break", chromedp.Click("#break", chromedp.ByQuery))
	c.wait("the dialog says whose it is", `document.querySelector('#break-dialog').open && document.querySelector('#doomed').innerText.includes('held by billing under token')`)
	c.shots("break")
	c.keys("no", kb.Enter) // the safe answer has the keyboard
	c.wait("the dialog is gone", `!document.querySelector('#break-dialog').open`)
	p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusOK)
	c.eval(`window.said = ''; new MutationObserver(() => { window.said += document.querySelector('#say').innerText; }).observe(document.querySelector('#say'), { childList: true, characterData: true, subtree: true }); 0`, nil)
	c.run("break", chromedp.Click("#break", chromedp.ByQuery), chromedp.Click("#break-confirm", chromedp.ByQuery))
	c.wait("it is broken", `document.querySelector('#history').innerText.includes('broken')`)
	c.wait("the next in the queue has it", `document.querySelector('#facts').innerText.includes('invoicing')`)
	c.wait("the keyboard is still there", `document.activeElement.id == 'detail-title'`)
	c.wait("the break is announced", `window.said.includes('broken')`)
	p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusNotFound)
	second := (<-turn).lease
	if second.FencingToken <= lease.FencingToken {
		t.Errorf("token %d after %d", second.FencingToken, lease.FencingToken)
	}

	// A stale write, and the way back.
	p.wants(p.ask(nil, "PUT", "/guarded/accounts/7", "1", fmt.Sprint("Fencing-Token: ", second.FencingToken)), http.StatusOK)
	p.wants(p.ask(nil, "PUT", "/guarded/accounts/7", "2", fmt.Sprint("Fencing-Token: ", lease.FencingToken)), http.StatusPreconditionFailed)
	c.wait("the stale write is shown", `document.querySelector('#history').innerText.includes('stale write refused')`)
	c.wait("the guard's mark is shown", fmt.Sprintf(`document.querySelector('#record dd')?.innerText == '%d'`, second.FencingToken))
	c.wait("the refused write is counted", `document.querySelector('#record').innerText.includes('1 of the last 2 attempts')`)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+second.LeaseID), http.StatusNoContent)
	c.wait("it is free", `document.querySelector('#detail-state').innerText.includes('Free')`)
	c.keys("back", kb.Escape)
	c.wait("the list is back, as it was", `document.querySelector('#detail').hidden && location.hash == '#/locks?find=bill'`)
	c.eval(`document.querySelector('#search').value = ''; document.querySelector('#search').dispatchEvent(new Event('input')); 0`, nil)
	c.wait("all locks are back", `document.querySelectorAll('#rows tr').length == 14`)
	c.shots("locks")

	// What ends by itself.
	p.acquire(`{"resource":"short","ttl_ms":2000}`)
	c.wait("it expired", `document.querySelector('#feed').innerText.includes('expired short')`)

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
	c.expect("status of 409") // B finds the lock held
	c.expect("status of 412") // the browser notes every refusal of the network
	c.expect("status of 404") // A gives its lease back, which has ended
	c.click("the race", `nav a[data-page="race"]`)
	c.wait("its view", `!document.querySelector('#page-race').hidden`)
	if text := c.text("#page-race"); !strings.Contains(text, "worker B") || strings.Contains(text, "Every step") {
		t.Errorf("before the race: who runs is not shown, or steps are: %q", text)
	}
	c.eval(`document.querySelector('#run').focus(); 0`, nil)
	c.keys("run", kb.Enter)
	c.wait("it ends as the story tells", `document.querySelector('#race-status').innerText.includes('the late write was refused')`)
	for selector, says := range map[string]string{
		"#card-1":                    "The balance is 130, but 100 + A's 30 + B's 20 are 150: B's deposit is gone.",
		"#card-2":                    "The balance is 150: 100 + A's 30 + B's 20. A got 412 and began again.",
		"#page-race .round + .round": "412 stale-token",
		"#page-race .round":          "writes the balance: 130",
		"#page-race .round .track":   "B's deposit is overwritten",
		".round + .round .track":     "refused: 412 stale-token",
	} {
		if text := c.text(selector); !strings.Contains(text, says) {
			t.Errorf("%s says %q, and not %q", selector, text, says)
		}
	}
	c.shots("race")
	c.picture("console-race")
	c.audit("the race")
	for _, width := range []int64{390, 1440} {
		c.run("resize", chromedp.EmulateViewport(width, 800))
		c.layout(fmt.Sprint("the race at ", width))
	}

	// On a small phone the result is in view.
	c.run("a phone", chromedp.EmulateViewport(320, 568, chromedp.EmulateMobile))
	for range 3 { // a busy machine may let B come too late
		c.click("again", "#run")
		c.wait("it runs again", `document.querySelector('#race-status').innerText == 'running'`)
		c.wait("it ends", `document.querySelector('#race-status').innerText != 'running'`)
		if strings.Contains(c.text("#race-status"), "refused") {
			break
		}
	}
	c.wait("the 412 is in view", `[...document.querySelectorAll('#card-2')].some((node) => {
		const box = node.getBoundingClientRect();
		return node.innerText.includes('412') && box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
	})`)
	c.layout("the race")
	c.shot("race-phone")
}

// TestConsoleAsksWhoYouAre shows the console under access control to four callers: one without a name, one who may
// read a part, one without any right, and an administrator. Only the administrator is offered to break leases.
func TestConsoleAsksWhoYouAre(t *testing.T) {
	testenv.Long(t, "a console that does not ask for a credential")
	t.Parallel()
	hash := func(secret string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(secret))) }
	file := filepath.Join(t.TempDir(), "access")
	rules := "reader token=sha256:" + hash("of-the-reader") + " read=orders/\nroot token=sha256:" + hash("of-the-root") +
		" admin=*\nidle token=sha256:" + hash("of-the-idle") + "\nracer token=sha256:" + hash("of-the-racer") + " acquire=console/race/\nend\n"
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_MAX_TTL=1h")
	root := "Authorization: Bearer of-the-root"
	for _, resource := range []string{"orders/1", "salaries/1"} {
		p.wants(p.ask(nil, "POST", "/locks", fmt.Sprintf(`{"resource":%q,"holder":"w","ttl_ms":3600000}`, resource), root), http.StatusCreated)
	}
	c := newPage(t, p)
	c.expect("status of 401")
	c.expect("status of 403")
	c.open("/console")
	c.wait("it asks who looks", `document.querySelector('#access-dialog').open && document.activeElement.id == 'bearer'`)
	c.wait("it says that the locks are unknown", `document.querySelector('#counts').innerText == 'unknown' && document.querySelector('#problem').innerText.includes('does not know who you are')`)
	c.audit("the dialog for the token")

	c.keys("type a wrong token", "of-an-impostor", kb.Enter)
	c.wait("the dialog says that it is refused", `document.querySelector('#access-dialog').open && document.querySelector('#access-problem').checkVisibility() &&
		document.querySelector('#access-problem').innerText.includes('refuses this bearer token') && document.activeElement.id == 'bearer'`)
	c.audit("the refused token")
	c.shots("token-refused")
	c.eval(`document.querySelector('#bearer').value = ''; 0`, nil)
	c.keys("type the token", "of-the-idle", kb.Enter)
	c.wait("it knows who that is", `!document.querySelector('#access-dialog').open && document.querySelector('#access').innerText == 'Access: idle'`)
	c.wait("it says that there is no right to read", `document.querySelector('#counts').innerText == 'unknown' && document.querySelector('#problem').innerText.includes('no right to read') &&
		document.querySelector('#link').innerText == 'no right to read' && !document.querySelector('#empty').checkVisibility()`)
	if text := c.text("#page-locks"); strings.Contains(text, "is locked") || strings.Contains(text, "0 held") || !strings.Contains(text, "An administrator gives the right") {
		t.Errorf("without a right to read it says:\n%s", text)
	}
	c.look("#/locks/orders%2F1")
	c.wait("nor is a lock said to be free", `document.querySelector('#detail-state').innerText.includes('Unknown whether it is held: you have no right to read it')`)
	c.audit("without a right to read")
	c.shots("no-right")
	c.look("#/locks")

	c.signIn("of-the-reader")
	c.wait("the reader's part is shown", `document.querySelector('#rows').innerText.includes('orders/1')`)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"salaries/2","holder":"w"}`, root), http.StatusCreated)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"orders/2","holder":"w"}`, root), http.StatusCreated)
	c.wait("what it may read comes", `document.querySelector('#rows').innerText.includes('orders/2')`)
	if all := c.text("body"); strings.Contains(all, "salaries") {
		t.Errorf("it shows what the reader may not read:\n%s", all)
	}
	c.click("who am I", "#access")
	c.wait("it says who, and what that may do", `document.querySelector('#access-me').innerText.includes('You are reader') && document.querySelector('#access-me').innerText.includes('read orders/')`)
	c.keys("away", kb.Escape)
	c.look("#/locks/orders%2F1")
	c.wait("to break is not offered, and it says why", `!document.querySelector('#break').checkVisibility() && !document.querySelector('#command-break').checkVisibility() &&
		document.querySelector('#no-break').innerText.includes('right admin, which reader does not have')`)
	c.wait("nor for several", `!document.querySelector('#pick-all').checkVisibility() && !document.querySelector('.pick input').checkVisibility()`)
	c.look("#/race")
	c.wait("nor is the race", `document.querySelector('#run').disabled && document.querySelector('#race-status').innerText.includes('right acquire')`)
	c.signIn("of-the-racer")
	for _, refused := range []string{"409", "412", "404"} {
		c.expect("status of " + refused) // which the race is about
	}
	c.wait("with that right alone it is", `!document.querySelector('#run').disabled`)
	c.click("run it", "#run")
	c.wait("it runs", `document.querySelector('#race-status').innerText == 'running'`)
	c.wait("to its end", `document.querySelector('#race-status').innerText != 'running'`)
	if text := c.text("#page-race"); !strings.Contains(text, "releases the lock") || c.text("#race-problem") != "" {
		t.Errorf("the race of one who may acquire, and not read, ended with\n%s", text)
	}

	c.look("#/locks")
	c.signIn("of-the-root")
	c.wait("all is shown", `document.querySelector('#rows').innerText.includes('salaries/2')`)
	c.look("#/locks/orders%2F1")
	c.wait("the administrator may break", `document.querySelector('#break').checkVisibility()`)
	c.run("break", chromedp.Click("#break", chromedp.ByQuery), chromedp.Click("#break-confirm", chromedp.ByQuery))
	c.wait("it is broken", `document.querySelector('#history').innerText.includes('broken')`)

	c.run("sign out", chromedp.Click("#access", chromedp.ByQuery), chromedp.Click("#access-forget", chromedp.ByQuery))
	c.wait("nothing is shown any more", `document.querySelector('#access-dialog').open && !document.body.innerText.includes('salaries')`)

	c.eval(`sessionStorage.setItem('fencelock-bearer', 'of-a-former-user'); 0`, nil)
	c.open("/console")
	c.wait("a token that is not known any more is told in the dialog", `document.querySelector('#access-dialog').open && document.querySelector('#access-problem').innerText.includes('refuses the bearer token that this tab has')`)
}

// signIn types another bearer token.
func (c *page) signIn(token string) {
	c.t.Helper()
	c.click("be another user", "#access")
	c.wait("it asks for the token", `document.activeElement.id == 'bearer'`)
	c.keys("type the token", token, kb.Enter)
	c.wait("it is taken", `!document.querySelector('#access-dialog').open`)
}

// TestConsoleComesBack kills the server under the page, and starts it again.
func TestConsoleComesBack(t *testing.T) {
	testenv.Long(t, "a console that stays without its server")
	t.Parallel()
	env := []string{"FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "locks.db"), fmt.Sprintf("FENCELOCK_LISTEN=127.0.0.1:%d", testenv.FreePort(t))}
	p := start(t, env...)
	p.acquire(`{"resource":"before","ttl_ms":60000}`)
	c := openConsole(t, p)
	for _, noise := range []string{"net::ERR_", "status of 503"} { // while it is away, and while it gets ready
		c.expect(noise)
	}
	c.wait("the lock is there", `document.querySelector('#rows').innerText.includes('before')`)
	p.Kill()
	c.wait("it says that the server is away", `document.querySelector('#link').innerText.includes('lost')`)
	c.wait("what it shows is dated and dimmed", `document.querySelector('#rows').innerText.includes('before') && document.querySelector('#table').matches('.stale') &&
		document.querySelector('#problem').hidden && /the server does not respond.*as of \d\d:\d\d:\d\d/.test(document.querySelector('#gone').innerText) && /as of \d\d:\d\d:\d\d/.test(document.querySelector('#strip').innerText)`)
	c.audit("while the server is away")
	c.shots("away")
	p = start(t, env...)
	c.wait("it is back", `document.querySelector('#link').innerText.includes('live') && !document.querySelector('#table').matches('.stale') && document.querySelector('#problem').hidden && document.querySelector('#gone').hidden`)

	// Names are shown as they are, whatever they are made of.
	const name = `<img src=x onerror=alert(1)>`
	p.acquire(fmt.Sprintf(`{"resource":%q,"holder":%q,"ttl_ms":60000}`, name, "<script>alert(2)</script> 🔒 \u202e"))
	p.acquire(fmt.Sprintf(`{"resource":%q,"holder":%q,"ttl_ms":60000}`, strings.Repeat("W", 256), strings.Repeat("W", 256)))
	c.wait("what turns the text is made visible", `document.querySelector('#rows').innerText.includes('🔒 U+202E') && !document.body.textContent.includes('\u202e')`)
	c.wait("the new lock is shown", fmt.Sprintf(`document.querySelector('#rows').innerText.includes(%q) && document.querySelector('#feed').innerText.includes(%q)`, name, name))
	c.run("open it", chromedp.Click(`#rows tr button[title^="<img"]`, chromedp.ByQuery))
	c.wait("it is shown", fmt.Sprintf(`document.querySelector('#detail-title').innerText == %q`, name))
	c.shot("names")
	p.acquire(`{"resource":"left\u202eright","holder":"\u2066evil\u2069\u200b","metadata":{"a":"\u202e"},"ttl_ms":60000}`)
	c.look("#/locks/" + url.PathEscape("left\u202eright"))
	c.wait("so is a resource", `document.querySelector('#detail-title').innerText == 'leftU+202Eright' && document.querySelector('#fact-holder').innerText == 'U+2066evilU+2069U+200B'`)
	c.wait("so is metadata, and a command escapes it", `document.querySelector('#fact-metadata').innerText.includes('⟨U+202E⟩') && document.querySelector('#command-get').innerText.endsWith("$'left\\U0000202eright'")`)
	c.wait("none is left", `!/[\u202a-\u202e\u2066-\u2069\u200b]/.test(document.body.textContent + document.title + [...document.querySelectorAll('[title], [aria-label]')].map((n) => n.title + n.ariaLabel).join(''))`)
	c.run("a phone", chromedp.EmulateViewport(320, 568, chromedp.EmulateMobile))
	c.layout("a long name")
	c.look("#/locks")
	c.wait("the list", `document.title.startsWith('Locks')`)
	c.layout("a list of long names")
	c.shot("names-phone")
}
