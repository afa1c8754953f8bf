package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The pace at which an issuer's keys are fetched. Other libraries fetch them for every token that the known
// keys do not verify, so each request with garbage would make the server call the issuer.
const (
	fetchTimeout = 10 * time.Second
	fetchPause   = time.Minute      // between two fetches
	firstPause   = 5 * time.Second  // the same while no keys are known
	keysFresh    = 30 * time.Minute // after this, keys are fetched again
	keysAge      = time.Hour        // after this, keys are no longer used: the issuer may have withdrawn one
	keysWait     = 2 * time.Second  // how long a request waits for a fetch
	maxDocument  = 1 << 20          // bytes
)

// Run fetches the issuer's keys at once, every half hour, and when a token names a
// key that is not known: one fetch at a time, and at most one a minute (while there
// are no keys, one in five seconds). A failed fetch is repeated at that pace. It
// returns when ctx ends.
func (i *Issuer) Run(ctx context.Context, logger *slog.Logger) {
	for ctx.Err() == nil {
		err := i.fetch(ctx)
		if err != nil && ctx.Err() == nil {
			logger.Error("the issuer's keys cannot be fetched, and the last ones stay in use until they are an hour old: make sure that this server reaches FENCELOCK_OIDC_ISSUER",
				slog.String("issuer", i.cfg.Issuer), slog.Any("error", err))
		}
		pause := fetchPause
		if i.current() == nil {
			pause = firstPause
		}
		i.rest(ctx, pause)
		if err != nil {
			continue
		}
		select {
		case <-i.wanted:
		case <-time.After(keysFresh - pause):
		case <-ctx.Done():
		}
	}
}

// current returns the keys that may be used now; nil if there are none.
func (i *Issuer) current() *keySet {
	if keys := i.keys.Load(); keys != nil && time.Now().Before(keys.ends) {
		return keys
	}
	return nil
}

// rest wakes the requests that waited for the fetch. Until the next fetch is due, requests do not wait.
func (i *Issuer) rest(ctx context.Context, pause time.Duration) {
	i.mu.Lock()
	select {
	case <-i.wanted: // drops a signal of a request that this fetch has served
	default:
	}
	close(i.next)
	i.mu.Unlock()
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return
	}
	i.mu.Lock()
	i.next = make(chan struct{})
	i.mu.Unlock()
}

// keysFor returns the known keys. If they lack the token's key and a fetch is due, it first waits for the
// fetch, at most keysWait. Errors: ErrUnavailable, ctx.Err().
func (i *Issuer) keysFor(ctx context.Context, token string) (*keySet, error) {
	keys, next := i.want(token)
	if keys != nil {
		return keys, nil
	}
	late := time.NewTimer(keysWait)
	defer late.Stop()
	select {
	case <-next:
	case <-late.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if keys := i.current(); keys != nil {
		return keys, nil
	}
	return nil, ErrUnavailable
}

// want returns the keys. If they lack the token's key, it requests a fetch and returns a channel that is
// closed when the fetch ends. It reads the keys under the lock, so that it does not request keys that a fetch
// has just brought.
func (i *Issuer) want(token string) (*keySet, <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if keys := i.current(); keys != nil && !keys.lack(token) {
		return keys, nil
	}
	select {
	case i.wanted <- struct{}{}:
	default: // another request asked already
	}
	return nil, i.next
}

// fetch queries the issuer for the address of its keys, and then fetches them.
func (i *Issuer) fetch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	found := &keySet{ends: time.Now().Add(keysAge)}
	var said struct {
		Issuer     string   `json:"issuer"`
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	address := strings.TrimSuffix(i.cfg.Issuer, "/") + "/.well-known/openid-configuration"
	if err := i.get(ctx, address, &said); err != nil {
		return err
	}
	if said.Issuer != i.cfg.Issuer {
		return fmt.Errorf("%s is of the issuer %q", address, said.Issuer)
	}
	var set struct {
		Keys []jsontext.Value `json:"keys"`
	}
	if err := i.get(ctx, said.Keys, &set); err != nil {
		return err
	}
	for _, text := range set.Keys {
		if key, ok := readKey(text); ok {
			found.keys = append(found.keys, key)
		}
	}
	found.algorithms = signing(said.Algorithms)
	i.keys.Store(found)
	return nil
}

// signing omits algorithms without a signature (none), and algorithms with a shared secret, which this server
// does not have.
func signing(said []string) (algorithms []jose.SignatureAlgorithm) {
	for _, name := range said {
		if name != "none" && !strings.HasPrefix(name, "HS") {
			algorithms = append(algorithms, jose.SignatureAlgorithm(name))
		}
	}
	if len(algorithms) == 0 {
		return []jose.SignatureAlgorithm{jose.RS256} // the one that every issuer must support
	}
	return algorithms
}

// readKey decodes a key. ok is false if it does not verify signatures or is of an unknown kind: such keys
// serve other purposes.
func readKey(text jsontext.Value) (key jose.JSONWebKey, ok bool) {
	var may struct {
		Operations []string `json:"key_ops"`
	}
	if json.Unmarshal(text, &may) != nil || json.Unmarshal(text, &key) != nil || !key.Valid() || !key.IsPublic() {
		return key, false
	}
	return key, (key.Use == "" || key.Use == "sig") && (may.Operations == nil || slices.Contains(may.Operations, "verify"))
}

// get reads the JSON at an address, strictly.
func (i *Issuer) get(ctx context.Context, address string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s responded %s", address, resp.Status)
	}
	if err := json.UnmarshalRead(http.MaxBytesReader(nil, resp.Body, maxDocument), into); err != nil {
		return fmt.Errorf("%s does not respond like an issuer: %w", address, err)
	}
	return nil
}

// newClient makes an HTTP client that protects the responses, so that nobody on the way can add a key.
func newClient(issuer string, transport http.RoundTripper) *http.Client {
	u, err := url.Parse(issuer)
	return &http.Client{Transport: overTLS{RoundTripper: transport, butLoopback: err == nil && u.Scheme == "http" && onLoopback(u)}}
}

// overTLS makes requests only over https. If the issuer itself uses plain HTTP on this machine's loopback, its
// keys may be there, too.
type overTLS struct {
	http.RoundTripper

	butLoopback bool
}

// RoundTrip checks every request, including those that follow a redirect.
func (o overTLS) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "https" || o.butLoopback && onLoopback(r.URL) {
		return o.RoundTripper.RoundTrip(r)
	}
	return nil, errors.New("the issuer's documents are read over https only")
}

func onLoopback(u *url.URL) bool {
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}
