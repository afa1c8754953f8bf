package docscheck

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// A page of the API that is longer, in pixels at a width of 1440, is hard to find anything on.
const tallestOfAPI = 10_000

// poll waits until a JavaScript expression is true.
func (s *builtSite) poll(what, expression string) {
	s.t.Helper()
	err := chromedp.Run(s.ctx, chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(sitePatience)))
	if err != nil {
		var text string
		s.do(chromedp.Evaluate(`location.href + '\n' + document.body.innerText.slice(0, 2000)`, &text))
		s.t.Fatalf("%s: %v\n%s", what, err, text)
	}
}

// shot saves a picture to the folder FENCELOCK_TEST_SHOTS, if there is one.
func (s *builtSite) shot(name string) {
	s.t.Helper()
	dir := os.Getenv("FENCELOCK_TEST_SHOTS")
	if dir == "" {
		return
	}
	var png []byte
	s.do(chromedp.CaptureScreenshot(&png))
	if err := os.WriteFile(filepath.Join(dir, "site-"+name+".png"), png, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// checkOperations is that each operation of the API has a page of its own, which a list leads to.
func (s *builtSite) checkOperations() {
	s.t.Helper()
	var pages []string
	s.do(chromedp.EmulateViewport(1440, 900), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "light"}}),
		chromedp.Navigate(s.url+"/v0.0.0/api/"), chromedp.Evaluate(`[...document.querySelectorAll('.operations a')].map((a) => a.href)`, &pages))
	operations := strings.Count(readFile(s.t, filepath.Join(moduleRoot(s.t), "openapi.yaml")), "operationId: ")
	if len(pages) != operations {
		s.t.Errorf("the API lists %d operations of %d", len(pages), operations)
	}
	s.shot("api-1440")
	for _, page := range append(pages, s.url+"/v0.0.0/api/") {
		var tall int
		s.do(chromedp.Navigate(page), chromedp.Evaluate(`document.documentElement.scrollHeight`, &tall))
		s.t.Logf("%s is %d px tall", strings.TrimPrefix(page, s.url), tall)
		if tall > tallestOfAPI {
			s.t.Errorf("%s is %d px tall", page, tall)
		}
	}
	s.do(chromedp.Navigate(s.url + "/v0.0.0/api/acquire/"))
	s.shot("acquire-1440")
	s.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	s.shot("acquire-390")
	s.do(chromedp.Navigate(s.url + "/v0.0.0/api/"))
	s.shot("api-390")
}

// checkContents is the list of a page's headings: beside the text, and folded above it on a phone. Each
// heading has a link to itself.
func (s *builtSite) checkContents() {
	s.t.Helper()
	const page = "/v0.0.0/docs/how-to/guard-other-storage/"
	s.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate(s.url+page))
	s.poll("the headings are listed beside the text", `document.querySelector('nav.contents a[href="#grpc"]').checkVisibility() && !document.querySelector('details.contents').checkVisibility() &&
		document.querySelector('nav.contents').getBoundingClientRect().left > document.querySelector('article').getBoundingClientRect().right`)
	s.shot("contents-1440")
	s.do(chromedp.Click(`nav.contents a[href="#grpc"]`))
	s.poll("a heading is in view, below the header", `location.hash == '#grpc' && (({ top }) => top >= document.querySelector('header').offsetHeight && top < innerHeight / 2)(document.querySelector('#grpc').getBoundingClientRect())`)
	s.poll("each heading links to itself", `[...document.querySelectorAll('article :is(h2, h3)')].every((h) => h.querySelector('.anchor').hash == '#' + h.id && h.querySelector('.anchor').ariaLabel.includes(h.innerText.trim()))`)

	s.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile), chromedp.Navigate(s.url+page))
	s.poll("on a phone they are folded", `!document.querySelector('nav.contents').checkVisibility() && !document.querySelector('details.contents a').checkVisibility()`)
	s.do(chromedp.Click(`details.contents summary`))
	s.shot("contents-390")
	s.do(chromedp.Click(`details.contents a[href="#grpc"]`))
	s.poll("and lead to the heading", `location.hash == '#grpc' && document.querySelector('#grpc').getBoundingClientRect().top < innerHeight`)
}

// checkCopy copies a block of code.
func (s *builtSite) checkCopy() {
	s.t.Helper()
	s.do(browser.GrantPermissions([]browser.PermissionType{browser.PermissionTypeClipboardReadWrite, browser.PermissionTypeClipboardSanitizedWrite}),
		chromedp.EmulateViewport(1440, 900), chromedp.Navigate(s.url+"/v0.0.0/quickstart/curl/"))
	s.poll("each block of code has a button", `[...document.querySelectorAll('main pre')].every((pre) => pre.nextElementSibling?.matches('button')) && document.querySelector('.code button').checkVisibility()`)
	s.do(chromedp.Click(`.code button`))
	s.poll("it says that it has copied", `document.querySelector('.code button').innerText == 'Copied'`)
	s.poll("it has", `(navigator.clipboard.readText().then((text) => { window.clip = text; }), window.clip && window.clip == document.querySelector('.code pre').textContent)`)
}

// checkSearchFindsSections types words that only one section has, and presses Enter.
func (s *builtSite) checkSearchFindsSections() {
	s.t.Helper()
	for words, want := range map[string]string{
		"interceptor streams":         "/v0.0.0/docs/how-to/guard-other-storage/#grpc",
		"idempotency-key acquisition": "/v0.0.0/api/acquire/#parameters",
	} {
		s.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate(s.url+"/v0.0.0/"), chromedp.SendKeys("#search input", words), chromedp.WaitVisible("#found a"))
		s.poll(words+" is found in a section", `[...document.querySelectorAll('#found a')].some((a) => a.href == '`+s.url+want+`' && a.innerText.includes(' › '))`)
		s.shot("search-1440")
		s.do(chromedp.KeyEvent(kb.Escape))
	}
}

// notForTheSite are rules of the console's audit that pages of text need not keep, by the beginning of what
// the audit says: links within a text may be small (WCAG 2.5.8), tables made of Markdown have plain heading cells,
// and a site has two navigations, a search, and none of the console's messages.
var notForTheSite = []string{"target smaller", "a heading cell without scope", "2 times <nav>", "outside of every landmark", "an unexpected role", "changes are not announced"}

// checkAudit looks at a page of each kind with the rules of accessibility that the console keeps.
func (s *builtSite) checkAudit() {
	s.t.Helper()
	script := readFile(s.t, filepath.Join(moduleRoot(s.t), "cmd", "fencelock", "testdata", "audit.js"))
	for _, page := range []string{"", "api/", "api/acquire/", "docs/how-to/guard-other-storage/", "quickstart/curl/"} {
		for _, width := range []int64{1440, 390} {
			for _, scheme := range []string{"light", "dark"} {
				var found []string
				s.do(chromedp.EmulateViewport(width, 900), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
					chromedp.Navigate(s.url+"/v0.0.0/"+page), chromedp.KeyEvent(kb.Shift), chromedp.Evaluate(script, &found))
				for _, problem := range found {
					if slices.ContainsFunc(notForTheSite, func(rule string) bool { return strings.HasPrefix(problem, rule) }) {
						continue
					}
					s.t.Errorf("%q at %d, %s: %s", page, width, scheme, problem)
				}
			}
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
