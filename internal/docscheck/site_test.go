package docscheck

import (
	"context"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/fencelock/fencelock/internal/testenv"
)

// siteWidths are a small phone, a tablet and a large screen.
var siteWidths = []int64{320, 768, 1600}

// sitePatience is for what a busy machine shows late.
const sitePatience = time.Minute

// TestSite builds the site and opens every page in a browser. It needs Hugo, which
// nothing else does.
func TestSite(t *testing.T) {
	testenv.Long(t, "a page of the site that is broken, hard to read, or leads nowhere")
	s := openSite(t)
	for _, page := range s.pages {
		s.checkPage(page)
	}
	s.checkFragments()
	s.checkContrastIsSeen()
	s.checkSearch()
	s.checkSearchFindsSections()
	s.checkOperations()
	s.checkContents()
	s.checkCopy()
	s.checkAudit()
	s.checkRace()
	s.checkWithoutScript()
}

type builtSite struct {
	t     *testing.T
	root  string
	url   string
	ctx   context.Context
	pages []string            // paths below url
	ids   map[string][]string // of each page
	links map[string][]string // by target: the pages that have it
}

func openSite(t *testing.T) *builtSite {
	t.Helper()
	s := &builtSite{t: t, root: t.TempDir(), ids: map[string][]string{}, links: map[string][]string{}}
	testenv.Installed(t, "hugo", "hugo")
	build := exec.Command("sh", filepath.Join(moduleRoot(t), "site", "build.sh"))
	build.Env = append(os.Environ(), "SITE_OUT="+s.root, "SITE_VERSION=v0.0.0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("site/build.sh: %v\n%s", err, said)
	}
	err := fs.WalkDir(os.DirFS(s.root), ".", func(name string, _ fs.DirEntry, err error) error {
		if path.Base(name) == "index.html" {
			s.pages = append(s.pages, "/"+strings.TrimSuffix(name, "index.html"))
		}
		return err
	})
	if err != nil || len(s.pages) < 40 {
		t.Fatalf("the site has only the pages %q: %v", s.pages, err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(s.root)))
	t.Cleanup(server.Close)
	s.url = server.URL

	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(testenv.Browser(t)), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true))...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	s.ctx, cancel = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(cancel)
	chromedp.ListenTarget(s.ctx, func(event any) {
		if e, ok := event.(*network.EventRequestWillBeSent); ok && !strings.HasPrefix(e.Request.URL, s.url+"/") && !strings.HasPrefix(e.Request.URL, "data:") {
			t.Errorf("a request to another host: %s", e.Request.URL)
		}
	})
	s.do(network.Enable())
	return s
}

func (s *builtSite) do(actions ...chromedp.Action) {
	s.t.Helper()
	if err := chromedp.Run(s.ctx, actions...); err != nil {
		s.t.Fatal(err)
	}
}

// checkPage looks at a page at every width, and in both colour schemes.
func (s *builtSite) checkPage(page string) {
	s.t.Helper()
	var links, ids, faint []string
	s.do(chromedp.Navigate(s.url+page),
		chromedp.Evaluate(`[...document.querySelectorAll('[href],[src]')].map(e => e.href || e.src)`, &links),
		chromedp.Evaluate(`[...document.querySelectorAll('[id]')].map(e => e.id)`, &ids))
	s.ids[page] = ids
	for _, link := range links {
		s.links[link] = append(s.links[link], page)
	}
	for _, width := range siteWidths {
		var over int64
		s.do(chromedp.EmulateViewport(width, 800), chromedp.Evaluate(`document.documentElement.scrollWidth - innerWidth`, &over))
		if over > 0 {
			s.t.Errorf("%s is %d px wider than %d", page, over, width)
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		s.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
			chromedp.Evaluate(faintText, &faint))
		if len(faint) > 0 {
			s.t.Errorf("%s, %s: contrast below 4.5: %q", page, scheme, faint)
		}
	}
}

// faintText is the text whose contrast with its background is below 4.5.
const faintText = `(() => {
	const channels = (c) => c.match(/[\d.]+/g).map(Number);
	const luminance = (c) => channels(c).slice(0, 3).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const background = (e) => {
		for (; e; e = e.parentElement) {
			const c = getComputedStyle(e).backgroundColor;
			if (channels(c)[3] !== 0) return c;
		}
		return matchMedia('(prefers-color-scheme: dark)').matches ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)';
	};
	return [...document.body.querySelectorAll('*')].filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())).filter((e) => {
		const [a, b] = [luminance(getComputedStyle(e).color), luminance(background(e))].sort((x, y) => y - x);
		return (a + 0.05) / (b + 0.05) < 4.5;
	}).map((e) => e.textContent.slice(0, 40));
})()`

// checkContrastIsSeen is that faint text would be found.
func (s *builtSite) checkContrastIsSeen() {
	s.t.Helper()
	var faint []string
	s.do(chromedp.Evaluate(`document.querySelector('h1').style.color = '#999'; document.querySelector('h1').style.background = '#fff'`, nil),
		chromedp.Evaluate(faintText, &faint))
	if len(faint) != 1 {
		s.t.Errorf("faint text is not found: %q", faint)
	}
}

// checkFragments follows every link that stays on the site.
func (s *builtSite) checkFragments() {
	s.t.Helper()
	for link, from := range s.links {
		u, err := url.Parse(link)
		if err != nil {
			s.t.Errorf("%s: %v", from[0], err)
			continue
		}
		if !strings.HasPrefix(link, s.url+"/") {
			continue
		}
		if ids, ok := s.ids[u.Path]; ok {
			if u.Fragment != "" && !slices.Contains(ids, u.Fragment) {
				s.t.Errorf("%s: no %s on %s", from[0], u.Fragment, u.Path)
			}
		} else if _, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(u.Path))); err != nil {
			s.t.Errorf("%s: a dead link: %s", from[0], u.Path)
		}
	}
}

// checkSearch types a word and opens the first page that has it.
func (s *builtSite) checkSearch() {
	s.t.Helper()
	for _, from := range []string{"/v0.0.0/", "/v0.0.0/docs/how-to/console/"} {
		var at, text string
		s.do(chromedp.Navigate(s.url+from), chromedp.SendKeys("#search input", "quarantine bootstrap"),
			chromedp.WaitVisible("#found a"), chromedp.Evaluate(`document.querySelector('#found a').href`, &at))
		s.do(chromedp.Navigate(at), chromedp.Text("main", &text))
		if !strings.Contains(strings.ToLower(text), "quarantine") {
			s.t.Errorf("search from %s leads to %s, which does not have the word", from, at)
		}
	}
}

// checkRace plays the recorded race: it shows all of the recording, before and after.
func (s *builtSite) checkRace() {
	s.t.Helper()
	var before, after, cards string
	s.do(chromedp.EmulateViewport(1280, 800), chromedp.Navigate(s.url+"/v0.0.0/race/"), chromedp.WaitVisible("#run"),
		chromedp.Text("#race", &before), chromedp.Click("#run"))
	s.do(chromedp.Poll(`document.getElementById('race-status').textContent === 'playing' && document.querySelectorAll('#race .steps li').length < 20`, nil, chromedp.WithPollingTimeout(time.Minute)),
		chromedp.Poll(`document.getElementById('race-status').textContent === ''`, nil, chromedp.WithPollingTimeout(time.Minute)),
		chromedp.Text("#race", &after), chromedp.Text("#race .cards", &cards))
	for _, says := range []string{"an update was lost", "The balance is 130", "the late write was refused", "A got 412"} {
		if !strings.Contains(cards, says) {
			s.t.Errorf("the race ends with %q, and not with %q", cards, says)
		}
	}
	if after != before || !strings.Contains(after, "is stopped (SIGSTOP)") {
		s.t.Errorf("the race was\n%s\nand after it was played\n%s", before, after)
	}
}

// checkWithoutScript is that all but the search is there without JavaScript.
func (s *builtSite) checkWithoutScript() {
	s.t.Helper()
	var state string
	s.do(emulation.SetScriptExecutionDisabled(true), chromedp.Navigate(s.url+"/v0.0.0/api/"),
		chromedp.Evaluate(`[document.querySelector('#search').hidden, document.querySelectorAll('#menu a').length > 30, document.querySelector('#acquire').checkVisibility()].join()`, &state))
	if want := "true,true,true"; state != want {
		s.t.Errorf("without JavaScript: %s, want %s", state, want)
	}
	s.do(chromedp.Navigate(s.url+"/v0.0.0/race/"),
		chromedp.Evaluate(`[document.querySelector('#run') === null, document.querySelector('noscript img').naturalWidth > 0].join()`, &state))
	if want := "true,true"; state != want {
		s.t.Errorf("the race without JavaScript: %s, want %s", state, want)
	}
}
