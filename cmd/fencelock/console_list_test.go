package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
)

// TestConsoleSaysWhatItDoesNotKnow takes the quorum away while the page is open, opens the page without a quorum, and
// gives the quorum back. The page never shows an unknown state as free, empty or live.
func TestConsoleSaysWhatItDoesNotKnow(t *testing.T) {
	testenv.Long(t, "a console that guesses while a server is away")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	p := start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_MAX_TTL=6s", "FENCELOCK_DEFAULT_TTL=6s", "FENCELOCK_NODE_DOWN_AFTER=600ms")
	client, stop := context.WithCancel(t.Context())
	var holding sync.WaitGroup
	defer holding.Wait()
	defer stop()
	holding.Go(func() { p.holds(client, "orders/1") })
	c := openConsole(t, p)
	c.expect("status of 501") // no guarded records
	c.expect("status of 503")
	c.wait("the list is there, and not an event alone", `document.querySelector('#rows').innerText.includes('orders/1') && document.querySelector('#counts').innerText.startsWith('1 held')`)

	for _, node := range nodes[1:] {
		node.Freeze()
	}
	c.wait("there is no quorum", `document.querySelector('#link').innerText == 'no quorum' && document.querySelector('#strip b').innerText.startsWith('No lock is granted')`)
	c.wait("the list is of the past, dated and dimmed", `document.querySelector('#table').matches('.stale') && document.querySelector('#rows').innerText.includes('orders/1') &&
		/^1 held at \d\d:\d\d:\d\d/.test(document.querySelector('#counts').innerText) &&
		/^The locks as of \d\d:\d\d:\d\d\. Those of now are unknown: too few nodes answer .* tries again by itself/.test(document.querySelector('#problem').innerText)`)
	c.wait("what has run out is not said to be over", `document.querySelector('#rows .ttl .text').innerText == 'unknown'`)
	c.wait("two nodes share the reason, and it is said once", `document.querySelectorAll('#strip .unreachable .name').length == 2 && document.querySelectorAll('#strip .why').length == 1`)
	c.audit("stale locks")
	c.shots("stale")
	c.click("the lock", "#rows .res")
	c.wait("its details are of the past", `/^As of \d\d:\d\d:\d\d\. What holds now is not known: too few nodes answer/.test(document.querySelector('#detail-state').innerText) && document.querySelector('#facts').checkVisibility()`)
	c.audit("stale details")

	// A page that is opened now knows nothing.
	c.open("/console#/locks/orders%2F1")
	c.wait("a lock that is held is unknown", `document.querySelector('#detail-state').innerText.startsWith('Unknown whether it is held: too few nodes answer')`)
	c.wait("so is its queue", `document.querySelector('#queue').innerText == 'Unknown.'`)
	c.look("#/locks")
	c.wait("so are the locks", `document.querySelector('#counts').innerText == 'unknown' && document.querySelector('#problem').innerText.startsWith('The locks are unknown: too few nodes answer') &&
		!document.querySelector('#empty').checkVisibility() && !document.querySelector('#table').checkVisibility()`)
	if text := c.text("body"); strings.Contains(text, "Free") || strings.Contains(text, "live") || strings.Contains(text, "0 held") {
		t.Errorf("without a quorum it says:\n%s", text)
	}
	c.shots("no-quorum")
	c.look("#/nodes")
	c.wait("the nodes are explained, a shared reason once", `document.querySelectorAll('#nodes .notice').length == 1 && /are unreachable: .*See whether Redis runs there/.test(document.querySelector('#nodes .notice').innerText)`)
	c.wait("each has its line", `(() => { const [up, down] = document.querySelectorAll('.node-table tbody tr');
		return /Redis|Valkey/.test(up.innerText) && up.innerText.includes('master') && /ago/.test(down.cells[6].innerText) && /\d s/.test(down.cells[2].innerText); })()`)
	c.eval(`window.since = document.querySelector('.node-table tbody tr').cells[2].innerText; 0`, nil)
	c.wait("the times tick", `document.querySelector('.node-table tbody tr').cells[2].innerText != window.since`)
	c.shots("nodes")

	for _, node := range nodes[1:] {
		node.Thaw()
	}
	c.look("#/locks")
	c.wait("it is known again", `document.querySelector('#link').innerText == 'live' && document.querySelector('#problem').hidden && document.querySelector('#counts').innerText.includes('held')`)
}

// holds acquires a resource, and extends the lease for as long as that succeeds, until ctx ends.
func (p *process) holds(ctx context.Context, resource string) {
	var lease struct {
		ID string `json:"lease_id"`
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		path, body, header := "/leases/current/extend", "", "Fencelock-Lease: "+lease.ID
		if lease.ID == "" {
			path, body, header = "/locks", fmt.Sprintf(`{"resource":%q}`, resource), "X-Request-Id: first"
		}
		resp, err := p.try(ctx, &lease, "POST", path, body, header)
		if path != "/locks" && err == nil && resp.StatusCode == http.StatusNotFound {
			lease.ID = ""
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// TestConsoleShowsTheGuard takes the storage of the guarded records away. Locks still work, and the page does not say
// that a record does not exist.
func TestConsoleShowsTheGuard(t *testing.T) {
	testenv.Long(t, "a console that shows a guard's refusals wrongly")
	t.Parallel()
	pg := testenv.StartPostgres(t)
	p := start(t, "FENCELOCK_DATABASE_URL="+pg.URL(), "FENCELOCK_MAX_TTL=1h")
	lease := p.acquire(`{"resource":"orders/1","ttl_ms":3600000}`)
	p.untilAnswer(http.StatusOK, "PUT", "/guarded/orders/1", "1", fmt.Sprint("Fencing-Token: ", lease.FencingToken))
	c := openConsole(t, p)
	c.expect("status of 503")
	c.look("#/nodes")
	c.wait("the guard is ready", `document.querySelector('#nodes').innerText.includes('The storage of guarded records is ready')`)
	pg.Kill()
	c.look("#/locks/orders%2F1")
	c.wait("its record is unknown", `document.querySelector('#record .notice')?.innerText.startsWith('Unknown: ')`)
	c.wait("the strip says that the guard is away", `document.querySelector('#strip').innerText.includes('No guarded record can be read or written: ') && document.querySelector('#link').innerText == 'live'`)
	c.audit("without the guard")
	c.look("#/race")
	c.wait("the race is not offered", `document.querySelector('#run').disabled && document.querySelector('#race-status').innerText.startsWith('The race needs the guard. ')`)
	c.look("#/nodes")
	c.wait("the page of the nodes says so, too", `document.querySelector('#nodes').innerText.includes('locks work')`)
	c.shots("guard")
	pg.Restart()
	p.untilAnswer(http.StatusOK, "GET", "/guarded/orders/1", "")
	c.wait("the guard is back", `document.querySelector('#nodes').innerText.includes('The storage of guarded records is ready')`)
}

// TestConsoleFinds has more locks than the page keeps: the server finds the others. Then the page groups prefixes,
// and breaks several locks at once.
func TestConsoleFinds(t *testing.T) {
	t.Parallel()
	p := start(t, "FENCELOCK_MAX_TTL=1h")
	var filling sync.WaitGroup
	for worker := range 16 {
		filling.Go(func() {
			for i := range 21 { // leases of 16 resources each
				names := make([]string, lockcore.MaxBundle)
				for k := range names {
					names[k] = fmt.Sprintf("orders/%02d/%02d-%02d", worker, i, k)
				}
				list, _ := json.Marshal(names)
				p.acquire(fmt.Sprintf(`{"resources":%s,"holder":"worker-%d","ttl_ms":3600000}`, list, worker))
			}
		})
	}
	filling.Wait()
	for i := range 3 {
		p.acquire(fmt.Sprintf(`{"resource":"zz/%d","holder":"Needle-%d","ttl_ms":3600000}`, i, i))
	}
	p.acquire(`{"resource":"zz/other","holder":"hay","ttl_ms":3600000}`)
	c := openConsole(t, p)
	c.wait("it says that it does not have all", `document.querySelector('#counts').innerText.startsWith('the first 5000 held')`)
	c.eval(`document.querySelector('#search').focus(); 0`, nil)
	c.keys("search a holder that the page does not have", "needle")
	c.wait("the server finds it", `document.querySelector('#counts').innerText.includes('3 found') && document.querySelectorAll('#rows tr').length == 3`)
	c.wait("what is found is announced", `document.querySelector('#say').innerText.includes('3 found')`)
	c.eval(`document.querySelector('#search').value = 'nowhere'; document.querySelector('#search').dispatchEvent(new Event('input')); 0`, nil)
	c.wait("that nothing is found is said once all were searched", `document.querySelector('#empty').innerText == 'No lock has this in its resource or holder.' && document.querySelector('#counts').innerText.includes('0 found')`)

	// The address keeps what is shown.
	c.eval(`document.querySelector('#search').value = 'NEEDLE'; document.querySelector('#search').dispatchEvent(new Event('input')); 0`, nil)
	c.run("sort and group", chromedp.SetValue("#sort", "held", chromedp.ByQuery), chromedp.Evaluate(`document.querySelector('#sort').dispatchEvent(new Event('change')); 0`, nil), chromedp.Click("#group", chromedp.ByQuery))
	c.wait("a group is shown", `document.querySelectorAll('#rows tr').length == 1 && document.querySelector('#rows .group').innerText.includes('zz/') && document.querySelector('#rows .group').innerText.includes('3 held')`)
	c.click("open it", "#rows .group .res")
	c.wait("its locks are shown", `document.querySelectorAll('#rows tr').length == 4 && document.querySelector('#rows .group .res').getAttribute('aria-expanded') == 'true'`)
	c.wait("the address has it all", `location.hash == '#/locks?find=NEEDLE&sort=held&group=1&open=zz%2F'`)
	c.open("/console#/locks/zz%2F1?find=NEEDLE&sort=held&group=1&open=zz%2F")
	c.wait("it shows the same", `document.querySelector('#search').value == 'NEEDLE' && document.querySelector('#sort').value == 'held' && document.querySelectorAll('#rows tr').length == 4 &&
		document.querySelector('#detail-title').innerText == 'zz/1' && document.querySelector('#fact-holder').innerText == 'Needle-1'`)
	c.click("another page", `nav a[data-page="nodes"]`)
	c.wait("the nodes", `document.querySelector('#nodes').checkVisibility()`)
	c.click("and back", `nav a[data-page="locks"]`)
	c.wait("the list is as it was", `document.querySelectorAll('#rows tr').length == 4 && location.hash == '#/locks?find=NEEDLE&sort=held&group=1&open=zz%2F'`)

	// Several are broken with one confirmation, but for the one that has changed hands.
	c.click("choose all", "#pick-all")
	c.wait("three are chosen", `document.querySelector('#picked').innerText == '3 chosen'`)
	c.click("break them", "#break-picked")
	c.wait("it says which", `document.querySelectorAll('#doomed li').length == 3 && document.querySelector('#doomed').innerText.includes('Needle-2')`)
	c.expect("status of 412") // the break of the lease that has ended
	p.breaks("zz/2")
	p.acquire(`{"resource":"zz/2","holder":"another needle","ttl_ms":3600000}`)
	c.click("yes", "#break-confirm")
	c.wait("one is left, and it says why", `document.querySelectorAll('#doomed li').length == 1 && document.querySelector('#doomed').innerText.includes('Another lease holds it by now') &&
		document.querySelector('#break-problem').innerText.includes('2 are')`)
	for i, held := range []bool{false, false, true} {
		var lock struct{ Held bool }
		p.ask(&lock, "GET", fmt.Sprint("/locks/zz/", i), "")
		if lock.Held != held {
			t.Errorf("zz/%d: held %t", i, lock.Held)
		}
	}
	c.click("that one, too", "#break-confirm")
	c.wait("all are broken, and the keyboard is in the list", `!document.querySelector('#break-dialog').open && document.querySelector('#bulk').hidden && document.activeElement.closest('.list') != null`)
	p.wants(p.ask(nil, "GET", "/locks/zz/other", ""), http.StatusOK)
}

// TestConsoleFindsWhatNoEventTold ends a lease whose server has stopped, so that no event reports it. The page
// notices without a new listing of the locks.
func TestConsoleFindsWhatNoEventTold(t *testing.T) {
	testenv.Long(t, "a lease without an event that the console does not show")
	t.Parallel()
	servers := startServers(t, 2, testenv.StartRedisN(t, 1))
	c := newPage(t, servers[0])
	c.run("list the locks once", chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := cdppage.AddScriptToEvaluateOnNewDocument(`{ const every = setInterval; window.setInterval = (work, pause) => (pause < 60_000 ? every(work, pause) : 0); }`).Do(ctx)
		return err
	}))
	c.open("/console")
	c.wait("the page follows", `document.querySelector('#link').textContent.includes('live')`)
	servers[1].acquire(`{"resource":"left","ttl_ms":8000}`)
	c.wait("the lease is shown", `document.querySelector('#rows').innerText.includes('left')`)
	servers[1].Kill()
	c.wait("it has ended", `!document.querySelector('#rows').innerText.includes('left')`)
	var feed string
	c.eval(`document.querySelector('#feed').innerText`, &feed)
	if strings.Contains(feed, "expired") {
		t.Errorf("an event said so:\n%s", feed)
	}
}

// TestConsoleActivity pauses and filters the activity, lets time run, and copies.
func TestConsoleActivity(t *testing.T) {
	testenv.Long(t, "a console's last hour that is wrong")
	t.Parallel()
	p := start(t, "FENCELOCK_MAX_TTL=1h")
	c := newPage(t, p)
	c.run("allow the clipboard", browser.GrantPermissions([]browser.PermissionType{browser.PermissionTypeClipboardReadWrite, browser.PermissionTypeClipboardSanitizedWrite}))
	c.open("/console")
	c.wait("the page follows", `document.querySelector('#link').textContent.includes('live')`)
	lease := p.acquire(`{"resource":"jobs/1","holder":"w","ttl_ms":3600000}`)
	c.wait("the grant is shown", `document.querySelector('#feed').innerText.includes('granted jobs/1')`)
	c.click("pause", "#pause")
	c.wait("it is paused", `document.querySelector('#pause').getAttribute('aria-pressed') == 'true'`)
	second := p.acquire(`{"resource":"jobs/2","holder":"w","ttl_ms":3600000}`)
	c.wait("what comes is counted, not shown", `document.querySelector('#activity-hint').innerText == 'Paused. New since then: 1.' && !document.querySelector('#feed').innerText.includes('jobs/2')`)
	c.click("resume", "#pause")
	c.wait("it is shown", `document.querySelector('#feed').innerText.includes('granted jobs/2')`)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusNoContent)
	c.wait("the release is shown", `document.querySelector('#feed').innerText.includes('released jobs/1')`)
	c.kinds("released broken expired")
	c.wait("only ends are shown", `document.querySelectorAll('#feed li').length == 1 && document.querySelector('#feed').innerText.includes('released')`)

	p.wants(p.ask(nil, "POST", "/leases/current/extend", "", "Fencelock-Lease: "+second.LeaseID), http.StatusOK)
	c.kinds("")
	c.wait("an extension is shown", `document.querySelector('#feed').innerText.includes('extended jobs/2')`)
	c.kinds("granted released broken expired waiting left stale-token-refused node gap")
	c.wait("all but that is shown", `document.querySelectorAll('#feed li').length == 3 && !document.querySelector('#feed').innerText.includes('extended')`)
	for range 520 { // more events than the page keeps
		p.wants(p.ask(nil, "POST", "/leases/current/extend", "", "Fencelock-Lease: "+second.LeaseID), http.StatusOK)
	}
	last := p.acquire(`{"resource":"jobs/3","holder":"w","ttl_ms":3600000}`)
	c.wait("extensions do not drive out the others", `document.querySelectorAll('#feed li').length == 4 && document.querySelector('#feed').innerText.includes('granted jobs/1')`)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+last.LeaseID), http.StatusNoContent)
	c.wait("one lock is left", `document.querySelectorAll('#rows tr').length == 1`)

	c.eval(`window.left = document.querySelector('#rows .ttl .text').innerText; 0`, nil)
	c.wait("the time left ticks", `document.querySelector('#rows .ttl .text').innerText != window.left`)
	c.look("#/locks/jobs%2F2")
	c.wait("the details", `document.querySelector('#fact-token').innerText != ''`)
	c.click("copy the token", `[data-copy="fact-token"]`)
	c.wait("it says so", `document.querySelector('#say').innerText == 'Copied'`)
	c.copied(`document.querySelector('#fact-token').innerText`)
	c.click("copy the command", `[data-copy="command-get"]`)
	c.copied(`document.querySelector('#command-get').innerText`)
	if command := c.text("#command-get"); command != "fencelock get --url "+p.url+" jobs/2" {
		t.Errorf("the command is %q", command)
	}
	c.eval(`window.held = document.querySelector('#fact-held').innerText; document.querySelector('[data-copy="fact-token"]').focus(); 0`, nil)
	c.wait("the details tick under the keyboard", `document.querySelector('#fact-held').innerText != window.held && document.activeElement.dataset.copy == 'fact-token'`)
	c.keys("back", kb.Escape)
	c.wait("the row has the keyboard", `document.activeElement.innerText == 'jobs/2'`)
}

// kinds chooses which events the activity shows: "" shows all of them.
func (c *page) kinds(of string) {
	c.t.Helper()
	c.eval(fmt.Sprintf(`{ const kinds = document.querySelector('#kinds'); kinds.value = %q; kinds.dispatchEvent(new Event('change')); } 0`, of), nil)
	c.wait("such a choice is there", fmt.Sprintf(`document.querySelector('#kinds').value == %q`, of))
}

// TestConsoleContention shows which requests wait and for how long, and what the server remembers of its last hour. A
// resource there leads to its page, and to the command that frees it.
func TestConsoleContention(t *testing.T) {
	testenv.Long(t, "a console that counts waiters wrongly")
	t.Parallel()
	p := start(t)
	c := openConsole(t, p)
	c.look("#/contention")
	c.wait("nothing happened yet", `document.querySelector('#waiters-hint').innerText == 'No request waits.' && document.querySelector('#held-hint').innerText == 'No lease is held or has ended.'`)
	ended := p.acquire(`{"resource":"jobs/7","holder":"first","ttl_ms":60000}`)
	waits := p.waitsFor(t.Context(), "jobs/7", "second", time.Minute, time.Minute)
	c.wait("the first who waits", `document.querySelector('#waiters tbody')?.innerText.includes('second')`)
	p.waitsFor(t.Context(), "jobs/7", "third", time.Minute, time.Minute)
	p.waitsFor(t.Context(), "jobs/7", "third", time.Minute, time.Minute)
	c.wait("who waits, for what, and whose it is: a resource has one row", `[...document.querySelectorAll('#waiters tbody tr')].map((tr) => [0, 1, 3, 4].map((i) => tr.cells[i].innerText).join(' ')).join() ==
		'jobs/7 3 third × 2, second first'`)
	c.wait("a lease that is held is among the longest", `[...document.querySelectorAll('#held tbody tr')].map((tr) => [tr.cells[0].innerText, tr.cells[2].innerText].join(' ')).join() == 'jobs/7 held now by first'`)
	c.eval(`window.held = document.querySelector('#held .for').innerText; 0`, nil)
	c.wait("for how long that is", `document.querySelector('#held .for').innerText != window.held`)
	c.eval(`window.waited = document.querySelector('#waiters .for').innerText; 0`, nil)
	c.wait("for how long", `document.querySelector('#waiters .for').innerText != window.waited`)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+ended.LeaseID), http.StatusNoContent)
	second := (<-waits).lease
	p.wants(p.ask(nil, "PUT", "/guarded/jobs/7", "1", fmt.Sprint("Fencing-Token: ", second.FencingToken)), http.StatusOK)
	p.wants(p.ask(nil, "PUT", "/guarded/jobs/7", "2", fmt.Sprint("Fencing-Token: ", ended.FencingToken)), http.StatusPreconditionFailed)
	c.wait("the hour has it", `[...document.querySelectorAll('.plot svg')].map((svg) => svg.getAttribute('aria-label')).join().replace('2 a minute', '1 a minute') ==
		'Grants: 2 in the last hour, at most 1 a minute,Waits, counted when they end: 1 in the last hour, at most 1 a minute,Refused writes: 1 in the last hour, at most 1 a minute'`) // the minute may end between the grants
	c.wait("a bar is drawn", `[...document.querySelectorAll('.plot rect')].some((bar) => bar.getBBox().height == 48)`)
	c.wait("the most contended and the longest held", `[...document.querySelectorAll('#hour a, #held a')].map((a) => a.innerText).join() == 'jobs/7,jobs/7,jobs/7' &&
		[...document.querySelectorAll('#held tbody tr')].map((tr) => tr.cells[2].innerText).sort().join() == 'ended,held now by second'`)
	c.shot("contention")
	c.eval(`document.querySelector('#hour a').focus(); 0`, nil)
	c.keys("to the lock", kb.Enter)
	c.wait("its page, with the command that frees it", fmt.Sprintf(`document.querySelector('#detail-title').innerText == 'jobs/7' && document.querySelector('#command-break').innerText.startsWith('fencelock break --token %d')`, second.FencingToken))
}

// copied waits until the clipboard has the value of a JavaScript expression.
func (c *page) copied(expression string) {
	c.t.Helper()
	c.wait("the clipboard", fmt.Sprintf(`(navigator.clipboard.readText().then((text) => { window.clip = text; }), window.clip == %s)`, expression))
}

// Names are in natural order, as people count. A link to a lock opens its page, also on a phone and after a reload,
// and puts the focus of the keyboard and of a screen reader there.
func TestConsoleOrderAndLinks(t *testing.T) {
	testenv.Long(t, "an order or a link of the console that is wrong")
	t.Parallel()
	p := start(t, "FENCELOCK_MAX_TTL=1h") // the locks are held until the last page is shown
	for _, name := range []string{"job/10", "job/2", "job/02b", "job/1", "job", "jobs"} {
		p.acquire(fmt.Sprintf(`{"resource":%q,"ttl_ms":3600000}`, name))
	}
	c := openConsole(t, p)
	c.expect("status of 404") // no guarded record
	c.wait("2 is before 10", `[...document.querySelectorAll('#rows .res')].map((b) => b.innerText).join() == 'job,job/1,job/02b,job/2,job/10,jobs'`)
	c.open("/console#/locks/job%2F10")
	for _, width := range []int64{375, 768, 899, 1400} {
		c.run("another width", chromedp.EmulateViewport(width, 700), chromedp.Reload())
		c.wait(fmt.Sprintf("the page of the lock at %d px has the focus, in view", width), `document.activeElement.id == 'detail-title' && document.activeElement.innerText == 'job/10' &&
			document.activeElement.getBoundingClientRect().top < innerHeight`)
	}
	c.look("#/nodes")
	c.wait("the nodes say what people can use", `document.querySelector('.node-table') && !document.querySelector('.node-table').innerText.includes('Epoch')`)
}
