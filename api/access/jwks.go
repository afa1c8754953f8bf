package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

// The pace of fetching an issuer's keys. The library's own key set fetches them for
// every token that they do not verify: each request with garbage would make the server
// call the issuer.
const (
	fetchTimeout = 10 * time.Second
	fetchPause   = time.Minute     // between two fetches
	firstPause   = 5 * time.Second // the same while no keys are known
	keysAge      = time.Hour       // then keys are fetched again, so that one which the issuer withdrew is dropped
	keysWait     = 2 * time.Second // how long a request waits for a fetch
	maxKeysBytes = 1 << 20
)

// keySet is an issuer's keys and algorithms at one time. It is never changed.
type keySet struct {
	verifier   *oidc.IDTokenVerifier
	algorithms []jose.SignatureAlgorithm
	keys       []jose.JSONWebKey
}

// Run fetches the issuer's keys at once, every hour, and when a token names a key
// that is not known: one fetch at a time, and at most one a minute (while there
// are no keys, one in five seconds). It returns when ctx ends.
func (i *Issuer) Run(ctx context.Context, logger *slog.Logger) {
	for ctx.Err() == nil {
		pause := fetchPause
		if err := i.fetch(ctx); err != nil && ctx.Err() == nil {
			logger.Error("the issuer's keys cannot be fetched, and the last ones stay in use: make sure that this server reaches FENCELOCK_OIDC_ISSUER",
				slog.String("issuer", i.cfg.Issuer), slog.Any("error", err))
		}
		if i.keys.Load() == nil {
			pause = firstPause
		}
		i.rest(ctx, pause)
		select {
		case <-i.wanted:
		case <-time.After(keysAge - pause):
		case <-ctx.Done():
		}
	}
}

// rest wakes the requests that waited for the fetch, and lets none wait until the next is due.
func (i *Issuer) rest(ctx context.Context, pause time.Duration) {
	i.mu.Lock()
	select {
	case <-i.wanted: // by a request that this fetch has served
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

// keysFor returns the keys that are known, after a fetch if they lack the
// token's and one is due. It waits for that at most keysWait. Errors:
// ErrUnavailable, ctx.Err().
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
	if keys := i.keys.Load(); keys != nil {
		return keys, nil
	}
	return nil, ErrUnavailable
}

// want returns the keys; if they lack the token's, it requests a fetch and returns a
// channel that is closed when the fetch ends. It reads the keys under the lock, so
// that it requests none for keys that a fetch has just brought.
func (i *Issuer) want(token string) (*keySet, <-chan struct{}) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if keys := i.keys.Load(); keys != nil && !keys.lack(token) {
		return keys, nil
	}
	select {
	case i.wanted <- struct{}{}:
	default: // another request asked already
	}
	return nil, i.next
}

// fetch asks the issuer where its keys are, and then for them.
func (i *Issuer) fetch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, i.client), fetchTimeout)
	defer cancel()
	provider, err := oidc.NewProvider(ctx, i.cfg.Issuer)
	if err != nil {
		return err
	}
	var said struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&said); err != nil {
		return err
	}
	found := &keySet{}
	config := &oidc.Config{ClientID: i.cfg.Audience}
	for _, algorithm := range said.Algorithms {
		if signs(algorithm) {
			config.SupportedSigningAlgs = append(config.SupportedSigningAlgs, algorithm)
		}
	}
	if len(config.SupportedSigningAlgs) == 0 {
		config.SupportedSigningAlgs = []string{oidc.RS256} // the one that every issuer has to know
	}
	for _, algorithm := range config.SupportedSigningAlgs {
		found.algorithms = append(found.algorithms, jose.SignatureAlgorithm(algorithm))
	}
	if found.keys, err = i.fetchKeys(ctx, said.Keys); err != nil {
		return err
	}
	found.verifier = oidc.NewVerifier(i.cfg.Issuer, found, config)
	i.keys.Store(found)
	return nil
}

// signs leaves out algorithms without a signature (none), and those with a shared
// secret, which this server does not have.
func signs(algorithm string) bool {
	return algorithm != "none" && !strings.HasPrefix(algorithm, "HS")
}

func (i *Issuer) fetchKeys(ctx context.Context, address string) (keys []jose.JSONWebKey, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", address, resp.Status)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxKeysBytes)).Decode(&set); err != nil {
		return nil, fmt.Errorf("%s did not answer with a set of keys: %w", address, err)
	}
	for _, text := range set.Keys {
		var key jose.JSONWebKey
		// A key of an unknown kind is for other services.
		if json.Unmarshal(text, &key) == nil && key.Valid() && key.IsPublic() {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// lack tells whether the token names a key that is not in the set.
func (k *keySet) lack(token string) bool {
	signed, err := jose.ParseSignedCompact(token, k.algorithms)
	return err == nil && len(k.of(signed)) == 0
}

// of are the keys that may have signed: the one that is named, or all.
func (k *keySet) of(signed *jose.JSONWebSignature) (keys []jose.JSONWebKey) {
	id := signed.Signatures[0].Header.KeyID // the compact form has exactly one
	for _, key := range k.keys {
		if id == "" || key.KeyID == id {
			keys = append(keys, key)
		}
	}
	return keys
}

var errSignature = errors.New("no key of the issuer verifies the signature")

// VerifySignature is of oidc.KeySet.
func (k *keySet) VerifySignature(_ context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(token, k.algorithms)
	if err != nil {
		return nil, err
	}
	for _, key := range k.of(signed) {
		if payload, err := signed.Verify(key); err == nil {
			return payload, nil
		}
	}
	return nil, errSignature
}
