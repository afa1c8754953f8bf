package main

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/fencelock/fencelock/internal/testenv"
)

// TestConsoleOnAPhone taps a lock on a narrow screen. The page then shows only that lock, from its top, and the back
// button leads to the list.
func TestConsoleOnAPhone(t *testing.T) {
	testenv.Long(t, "a console that a phone cannot use")
	t.Parallel()
	p := start(t, "FENCELOCK_MAX_TTL=1h")
	for i := range 30 {
		p.acquire(fmt.Sprintf(`{"resource":"orders/%d","holder":"worker-%d","ttl_ms":3600000,"metadata":{"job":%d}}`, 1000+i, i%5, i))
	}
	c := newPage(t, p)
	c.run("a phone", chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	c.open("/console")
	c.wait("all locks are there", `document.querySelectorAll('#rows tr').length == 30`)
	c.layout("the list on a phone")
	c.shot("phone-list-390")
	c.run("tap one far down", chromedp.ScrollIntoView(`#rows tr:nth-child(25) .res`, chromedp.ByQuery), chromedp.Click(`#rows tr:nth-child(25) .res`, chromedp.ByQuery))
	c.wait("that lock is shown", `document.querySelector('#detail-title').innerText == 'orders/1024' && document.querySelector('#fact-holder').innerText == 'worker-4'`)
	c.wait("and no other", `!document.querySelector('#table').checkVisibility() && !document.querySelector('#search').checkVisibility() && !document.body.innerText.includes('orders/1023')`)
	c.wait("its name and its holder are in view", `['#detail-title', '#fact-holder', '#close'].every((selector) => {
		const box = document.querySelector(selector).getBoundingClientRect();
		return box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth;
	})`)
	c.layout("a lock on a phone")
	c.audit("a lock on a phone")
	c.shot("phone-lock-390")
	c.click("back", "#close")
	c.wait("the list, at the lock", `document.querySelector('#table').checkVisibility() && !document.querySelector('#detail').checkVisibility() && document.activeElement.innerText == 'orders/1024'`)
	c.run("a desk", chromedp.EmulateViewport(1440, 900))
	c.click("a lock", `#rows tr:nth-child(3) .res`)
	c.wait("it is shown beside the list", `document.querySelector('#detail-title').innerText == 'orders/1002' && document.querySelector('#table').checkVisibility() && document.querySelector('#detail').checkVisibility()`)
	c.layout("a lock at a desk")
	c.shot("desk-lock-1440")
}
