package main

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/fencelock/fencelock/internal/testenv"
)

// auditScript checks the page against rules of accessibility, and layoutScript checks that nothing overlaps or is cut
// off. Each returns a list of what is wrong.
var (
	//go:embed testdata/audit.js
	auditScript string
	//go:embed testdata/layout.js
	layoutScript string
)

// scheme is light or dark; contrast forced colours, as a system may ask for them.
func (c *page) scheme(scheme, forced string) {
	c.t.Helper()
	c.run(scheme, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "forced-colors", Value: forced}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}))
}

// audit checks accessibility in both schemes.
func (c *page) audit(what string) {
	c.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		c.scheme(scheme, "none")
		c.keys("the keyboard is in use", kb.Shift) // so that focus is shown
		var found []string
		c.eval(auditScript, &found)
		for _, problem := range found {
			c.t.Errorf("%s, %s: %s", what, scheme, problem)
		}
	}
	c.scheme("light", "none")
}

// layout checks that nothing on the page overlaps or is cut off.
func (c *page) layout(what string) {
	c.t.Helper()
	var found []string
	c.eval(layoutScript, &found)
	for _, problem := range found {
		c.t.Errorf("%s: %s", what, problem)
	}
	if len(found) > 0 {
		c.shot("layout-" + strings.NewReplacer(" ", "-", "/", "-").Replace(what))
	}
}

// picture saves a picture of the documentation to the folder FENCELOCK_TEST_PICTURES,
// if there is one.
func (c *page) picture(name string) {
	dir := os.Getenv("FENCELOCK_TEST_PICTURES")
	if dir == "" {
		return
	}
	c.scheme("light", "none")
	const quality = 80
	c.run("a picture", chromedp.ActionFunc(func(ctx context.Context) error {
		webp, err := cdppage.CaptureScreenshot().WithFormat(cdppage.CaptureScreenshotFormatWebp).WithQuality(quality).Do(ctx)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name+".webp"), webp, 0o600)
	}))
}

// TestConsoleFits shows the console from a small phone to a large screen: everything
// has its place and can be read, named and reached in both colour schemes.
func TestConsoleFits(t *testing.T) {
	testenv.Long(t, "a console that is wider than its window")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	p := start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_MAX_TTL=3h", "FENCELOCK_NODE_DOWN_AFTER=3s")
	c := openConsole(t, p)
	c.expect("status of 501") // no guarded records
	widths := []int64{320, 375, 390, 768, 901, 1024, 1280, 1440, 1600}
	c.wait("it says that nothing is locked", `document.querySelector('#empty').innerText == 'No resource is locked.' && document.querySelector('#counts').innerText == '0 held'`)
	c.audit("without locks")
	for _, width := range widths {
		c.run("resize", chromedp.EmulateViewport(width, 800))
		c.layout(fmt.Sprint("without locks at ", width))
	}

	for i := range 7 {
		p.acquire(fmt.Sprintf(`{"resource":"orders/%d","holder":"worker-%d.eu-central-1.example.com","ttl_ms":%d,"metadata":{"job":%d}}`, 1000+37*i, i, 60_000+1_500_000*i, i))
	}
	p.acquire(`{"resource":"low","holder":"almost over","ttl_ms":600000}`)
	waits := t.Context()
	for i := range 3 {
		p.waitsFor(waits, "orders/1000", fmt.Sprint("next-", i), 10*time.Minute, 10*time.Minute)
	}
	p.waitsFor(waits, "orders/1037", "worker-2.eu-central-1.example.com", 10*time.Minute, 10*time.Minute)
	p.waitsFor(waits, "orders/1074", "worker-1.eu-central-1.example.com", 10*time.Minute, 10*time.Minute)
	nodes[2].Kill()
	c.wait("the node that is away is shown", `document.querySelector('#strip').innerText.includes('unreachable')`)
	c.wait("who waits is shown", `document.querySelector('#rows .waits')?.innerText == '3'`)
	for _, at := range []struct{ name, hash, ready string }{
		{"locks", "#/locks", `document.querySelectorAll('#rows tr').length == 8`},
		{"groups", "#/locks?group=1&open=orders/", `document.querySelectorAll('#rows tr').length == 9 && document.querySelectorAll('#rows tr.group').length == 2`},
		{"lock", "#/locks/orders%2F1000", `document.querySelectorAll('#queue li').length == 3 && document.querySelector('#record').innerText.includes('no guarded records')`},
		{"blocked", "#/blocked", `document.querySelectorAll('#deadlocks article').length == 1 && document.querySelectorAll('#chain tbody tr').length == 6`},
		{"contention", "#/contention", `document.querySelectorAll('#waiters tbody tr').length == 3 && document.querySelectorAll('.plot rect').length == 180`},
		{"nodes", "#/nodes", `document.querySelectorAll('.node-table tbody tr').length == 3`},
		{"race", "#/race", `!document.querySelector('#run').disabled && !document.querySelector('#page-race').hidden`},
	} {
		c.look(at.hash)
		c.wait(at.name, at.ready)
		for _, width := range widths {
			c.run("resize", chromedp.EmulateViewport(width, 800))
			c.layout(fmt.Sprintf("%s at %d", at.name, width))
			if at.name == "lock" {
				c.wait(fmt.Sprint("a lock beside the list if there is room, else alone, at ", width), fmt.Sprintf(`document.querySelector('#detail').checkVisibility() && document.querySelector('#table').checkVisibility() == %t`, width >= 1280))
			}
			if width == widths[0] || width == widths[len(widths)-1] {
				c.audit(fmt.Sprintf("%s at %d", at.name, width))
			}
			c.shot(fmt.Sprintf("%s-%d", at.name, width))
		}
	}

	// A dialog, and forced colours.
	c.look("#/locks")
	c.wait("the list", `document.querySelectorAll('#rows tr .pick input').length == 8`)
	c.click("choose all", "#pick-all")
	c.wait("they are chosen", `document.querySelector('#picked').innerText == '8 chosen'`)
	c.click("break them", "#break-picked")
	c.wait("it asks", `document.querySelector('#break-dialog').open`)
	c.audit("the confirmation")
	c.shots("break-several")
	c.keys("no", kb.Escape)
	c.scheme("light", "active")
	c.wait("gauges are seen in forced colours", `[...document.querySelectorAll('.gauge')].every((gauge) => {
		const [bar, around] = [getComputedStyle(gauge.firstElementChild), getComputedStyle(document.querySelector('table'))];
		return bar.backgroundColor != around.backgroundColor && getComputedStyle(gauge).borderTopStyle == 'solid';
	})`)
	c.shot("forced-colours")
}

// TestConsolePictures shows what the picture of the documentation shows, and takes it.
func TestConsolePictures(t *testing.T) {
	testenv.Long(t, "a console that the pictures of the documentation do not show")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	p := start(t, redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_MAX_TTL=1h", "FENCELOCK_NODE_DOWN_AFTER=3s")
	for i, lock := range []struct {
		resource, holder string
		ttl              time.Duration
	}{
		{"accounts/1042", "billing-2", 141 * time.Second}, {"deploy/production", "ci-runner-7", 9 * time.Minute}, {"invoices/2026-03", "billing-1", 155 * time.Second},
		{"jobs/nightly-export", "cron@db-3", 50 * time.Minute}, {"jobs/reindex", "worker-12", 3 * time.Minute}, {"orders/42", "worker-7", 130 * time.Second},
		{"orders/58", "worker-3", 128 * time.Second}, {"tenants/acme/migrate", "deployer", 20 * time.Minute},
	} {
		p.acquire(fmt.Sprintf(`{"resource":%q,"holder":%q,"ttl_ms":%d}`, lock.resource, lock.holder, lock.ttl.Milliseconds()))
		for waiter := range (i + 1) % 3 {
			p.waitsFor(t.Context(), lock.resource, fmt.Sprintf("%s-%d", "worker", 20+i+waiter), 10*time.Minute, time.Minute)
		}
	}
	released := p.acquire(`{"resource":"orders/77","holder":"worker-5"}`)
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+released.LeaseID), http.StatusNoContent)
	nodes[2].Kill()
	c := openConsole(t, p)
	c.scheme("light", "none")
	c.wait("locks, queues and a node that is unreachable", `document.querySelectorAll('#rows tr').length == 8 && document.querySelectorAll('#rows .waits').length == 6 &&
		document.querySelector('#strip .unreachable') != null && document.querySelector('#feed').innerText.includes('released orders/77')`)
	c.layout("the picture")
	c.picture("console-locks")
}

// The scripts find what they are there for.
func TestConsoleAuditFinds(t *testing.T) {
	testenv.Long(t, "that the audit of the console's page finds nothing any more")
	t.Parallel()
	c := openConsole(t, start(t))
	c.eval(`document.querySelector('#say').textContent = 'x'; 0`, nil)
	for _, broken := range []struct{ script, selector, attribute, value, finds string }{
		{auditScript, "#counts", "style", "color: #999", "contrast of text"},
		{auditScript, "#search", "style", "border-color: #ddd", "contrast of the control"},
		{auditScript, ".dot", "style", "background: #ddd", "contrast of the graphic"},
		{auditScript, ".search .unseen", "aria-hidden", "true", "no name"},
		{auditScript, "#locks-title", "hidden", "", "not one h1"},
		{auditScript, "#pause", "style", "outline: none", "focus has no outline"},
		{auditScript, "#pause", "style", "outline-color: #eee", "contrast of the focus"},
		{auditScript, "#pause", "style", "min-height: 0; height: 20px; padding: 0", "target smaller than 24 pixels"},
		{auditScript, "#pause", "aria-pressed", "yes", "a wrong value"},
		{auditScript, "#table", "aria-labelledby", "nowhere", "names nothing"},
		{auditScript, "nav", "aria-label", "", "a region without a name"},
		{auditScript, "#say", "class", "", "outside of every landmark"},
		{auditScript, "#say", "id", "link", "an id that is there twice"},
		{auditScript, ".bar", "class", "unseen", "can be reached, and is not seen"},
		{auditScript, "th", "scope", "", "a heading cell without scope"},
		{layoutScript, "#search", "style", "min-width: 2000px", "outside of the window"},
		{layoutScript, ".top", "style", "min-width: 2000px", "wider than the window"},
		{layoutScript, ".brand", "style", "width: 30px; overflow: hidden", "cut off"},
		{layoutScript, "#link", "style", "position: absolute; left: 60px; top: 18px", "overlaps"},
		{layoutScript, "th:last-child", "style", "width: 20px", "a column without room"},
	} {
		c.keys("the keyboard is in use", kb.Shift)
		var found []string
		c.eval(fmt.Sprintf(`{
			const node = document.querySelector(%q);
			window.undo = [node, %[2]q, node.getAttribute(%[2]q)];
			if (%[2]q === 'style') node.style.cssText = %[3]q; // the policy allows this way
			else node.setAttribute(%[2]q, %[3]q);
		} 0`, broken.selector, broken.attribute, broken.value), nil)
		c.eval(broken.script, &found)
		if !strings.Contains(strings.Join(found, "\n"), broken.finds) {
			t.Errorf("with %s %s=%q it finds %q, and not: %s", broken.selector, broken.attribute, broken.value, found, broken.finds)
		}
		c.eval(`{
			const [node, attribute, value] = window.undo;
			if (attribute === 'style') node.style.cssText = '';
			else if (value === null) node.removeAttribute(attribute);
			else node.setAttribute(attribute, value);
		} 0`, nil)
	}
	c.audit("after all")
	c.layout("after all")
}
