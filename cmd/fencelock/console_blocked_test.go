package main

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/fencelock/fencelock/internal/testenv"
)

// TestConsoleBlocked shows a chain of waits, and then a deadlock as soon as the page learns of its last wait. One
// click leads to the page of the lease to break.
func TestConsoleBlocked(t *testing.T) {
	testenv.Long(t, "a console that names no deadlock")
	t.Parallel()
	p := start(t)
	c := openConsole(t, p)
	c.expect("status of 404") // no guarded record
	c.look("#/blocked")
	c.wait("nobody waits", `document.querySelector('#blocked-hint').innerText == 'No holder waits.'`)
	leases := map[string]int64{}
	for holder, resource := range map[string]string{"ann": "x", "bob": "y", "<b>cid": "z"} {
		leases[holder] = p.acquire(fmt.Sprintf(`{"resource":%q,"holder":%q,"ttl_ms":60000}`, resource, holder)).FencingToken
	}
	p.acquire(`{"resource":"bare","ttl_ms":60000}`)
	p.waits(t.Context(), "y", "ann", time.Minute)
	p.awaitWaiting("y", 1)
	p.waits(t.Context(), "z", "bob", time.Minute)
	p.awaitWaiting("z", 1)
	rows := func(id string) string {
		return fmt.Sprintf(`[...document.querySelectorAll('#%s tbody tr')].map((tr) => [...tr.cells].map((td) => td.querySelector('.for') ? '' : td.innerText).join(' ').replaceAll('  ', ' ').trim()).join()`, id)
	}
	c.wait("a chain, which is not a deadlock", rows("chain")+` == 'ann x y bob,bob y z <b>cid,<b>cid z nothing' && !document.querySelector('#deadlocks article')`)
	c.wait("what has no label", `document.querySelector('#blocked-hint').innerText == 'Leases and waits without a label, which are in no chain: 1.'`)
	c.eval(`window.waited = document.querySelector('#chain .for').innerText; 0`, nil)
	c.wait("for how long", `document.querySelector('#chain .for').innerText != window.waited`)

	p.waits(t.Context(), "x", "<b>cid", time.Minute)
	c.wait("the deadlock", `document.querySelectorAll('#deadlocks article').length == 1 && document.querySelector('#deadlocks p').textContent == 'To end it, break the lease of <b>cid, whose wait began last: z'`)
	c.wait("its waits", rows("deadlocks")+fmt.Sprintf(` == '<b>cid x ann %d,ann y bob %d,bob z <b>cid %d'`, leases["ann"], leases["bob"], leases["<b>cid"]))
	c.audit("a deadlock")
	c.shots("blocked")

	c.eval(`document.querySelector('#blocked-name').focus(); 0`, nil)
	c.keys("a holder", "bob"+kb.Enter)
	c.wait("it begins there", `location.hash == '#/blocked/bob' && document.querySelector('#chain tbody tr')?.cells[0].innerText == 'bob' && document.querySelectorAll('#deadlocks article').length == 1`)
	c.look("#/locks/bare")
	c.click("who is in the way", "#why")
	c.wait("a lease without a label", `location.hash == '#/blocked/bare' && document.querySelector('#blocked-name').value == 'bare' && document.querySelector('#blocked-hint').innerText.startsWith('It is held by a lease without a label')`)
	c.look("#/blocked")
	c.wait("the deadlock again", `document.querySelector('#deadlocks p a') != null`)
	c.click("the lease to break", "#deadlocks p a")
	c.wait("its page", `document.querySelector('#detail-title').innerText == 'z'`)
	p.wants(p.ask(nil, "POST", "/breaks", breakAny("z")), http.StatusNoContent)
	c.look("#/blocked")
	c.wait("it is resolved", `document.querySelectorAll('#chain tbody tr').length > 0 && !document.querySelector('#deadlocks article')`)
}
