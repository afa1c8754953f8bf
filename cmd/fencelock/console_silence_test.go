package main

import (
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/fencelock/fencelock/internal/testenv"
)

// TestConsoleSaysThatNoWordComes freezes the server: its connections stay open, and nothing arrives. After two missed
// heartbeats the page says so, once, and offers no action that needs the server.
func TestConsoleSaysThatNoWordComes(t *testing.T) {
	testenv.Long(t, "a console that shows a frozen server as live")
	t.Parallel()
	p := start(t, "FENCELOCK_MAX_TTL=1h")
	p.acquire(`{"resource":"long","ttl_ms":3600000}`)
	c := openConsole(t, p)
	c.expect("net::ERR_")
	c.look("#/locks/long")
	c.wait("to break is offered", `document.querySelector('#break').checkVisibility() && !document.querySelector('#break').disabled`)
	p.acquire(`{"resource":"short","ttl_ms":15000}`)
	c.wait("both locks are shown", `document.querySelectorAll('#rows tr').length == 2`)

	c.click("ask to break", "#break")
	c.wait("it asks", `document.querySelector('#break-dialog').open && !document.querySelector('#break-confirm').disabled`)

	p.Freeze()
	c.wait("a dialog that is open says that it cannot break now", `document.querySelector('#break-confirm').disabled && document.querySelector('#break-problem').checkVisibility() && document.querySelector('#break-problem').innerText.startsWith('Nothing comes from the server')`)
	c.keys("close it", kb.Escape)
	c.wait("it says for how long no word has come", `/^No word from the server for \d\d s\. What is shown is as of \d\d:\d\d:\d\d\./.test(document.querySelector('#gone').innerText) && document.querySelector('#gone').checkVisibility()`)
	c.wait("it is not live", `document.querySelector('#link').innerText == 'no word'`)
	c.eval(`window.said = document.querySelector('#gone').innerText; 0`, nil)
	c.wait("the seconds go on", `document.querySelector('#gone').innerText != window.said`)
	c.wait("the lock is dated and dimmed, and cannot be broken", `document.querySelector('#detail').matches('.stale') && /^As of \d\d:\d\d:\d\d\.$/.test(document.querySelector('#detail-state').innerText) && document.querySelector('#break').disabled`)
	c.audit("without a word")
	c.shots("no-word")
	c.wait("nor can several", `document.querySelector('#break-picked').disabled && document.querySelector('#break-confirm').disabled`)
	c.wait("an expired lease is not said to be ending", `[...document.querySelectorAll('#rows .ttl .text')].some((text) => text.innerText == '–') && document.querySelector('#table').matches('.stale')`)
	for _, hash := range []string{"#/locks/long", "#/locks", "#/blocked", "#/contention", "#/nodes"} {
		c.look(hash)
		c.wait(hash+" says it once", `document.querySelector('#main').innerText.match(/no word|respond/gi).length == 1`)
	}
	c.look("#/locks/long")

	p.Thaw()
	c.wait("it is heard again", `document.querySelector('#gone').hidden && document.querySelector('#link').innerText == 'live'`)
	c.wait("to break is offered again", `!document.querySelector('#break').disabled && !document.querySelector('#detail').matches('.stale')`)
	c.wait("what ended meanwhile is gone", `document.querySelectorAll('#rows tr').length == 1`)
}
