package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// The types of the variables that are no plain text, number or duration. Each
// implements envconfig.Decoder; the error says what the value must be, and
// never repeats it, since it may be secret.

type (
	recovery      membership.Recovery
	bootstrapMode string
	tracingMode   string
	logFormat     string
)

func (r *recovery) Decode(text string) error {
	return choose(r, text, recovery(membership.RecoveryAuto), recovery(membership.RecoveryManual))
}

func (m *bootstrapMode) Decode(text string) error { return choose(m, text, "new") }

func (m *tracingMode) Decode(text string) error { return choose(m, text, "off", "otlp") }

func (f *logFormat) Decode(text string) error { return choose(f, text, "text", "json") }

// choose sets into to the text, if that is one of those allowed.
func choose[T ~string](into *T, text string, allowed ...T) error {
	if !slices.Contains(allowed, T(text)) {
		words := make([]string, len(allowed))
		for i, word := range allowed {
			words[i] = string(word)
		}
		return errors.New("must be " + strings.Join(words, " or "))
	}
	*into = T(text)
	return nil
}

// address is host:port, to listen on.
type address string

func (a *address) Decode(text string) error {
	_, port, err := net.SplitHostPort(text)
	if n, errPort := strconv.ParseUint(port, 10, 16); err != nil || errPort != nil || strconv.FormatUint(n, 10) != port {
		return errors.New("must be host:port with a port from 0 to 65535, such as 127.0.0.1:8080")
	}
	*a = address(text)
	return nil
}

func onLoopback(a string) bool {
	host, _, err := net.SplitHostPort(a)
	return err == nil && loopback(host)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// mostPrefixes bounds the series that the prefixes make.
const mostPrefixes = 20

// prefixes are different prefixes of resources.
type prefixes []string

func (p *prefixes) Decode(text string) error {
	list := strings.Split(text, ",")
	bad := len(list) > mostPrefixes
	for i, prefix := range list {
		bad = bad || lockcore.ValidateResource(prefix) != nil || slices.Contains(list[:i], prefix)
	}
	if bad {
		return fmt.Errorf("must be at most %d different prefixes such as orders/,invoices/, none of them empty", mostPrefixes)
	}
	*p = list
	return nil
}

// hosts are names of hosts, or api.AnyHost.
type hosts []string

func (h *hosts) Decode(text string) error {
	list := strings.Split(text, ",")
	for i, host := range list {
		list[i] = strings.TrimSpace(host)
		if list[i] == "" || list[i] != api.AnyHost && strings.ContainsAny(list[i], "*/:@ ") && net.ParseIP(list[i]) == nil {
			return errors.New("must be names such as locks.example.com, without scheme and port, separated by commas, or *")
		}
	}
	*h = list
	return nil
}

// postgresURL is a URL that may hold a password.
type postgresURL string

func (p *postgresURL) Decode(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return errors.New("must be a URL such as postgres://user:password@host:5432/database")
	}
	*p = postgresURL(text)
	return nil
}

// redisSets are URLs, which may hold passwords, set by set.
type redisSets [][]string

func (r *redisSets) Decode(text string) error {
	var sets redisSets
	for set := range strings.SplitSeq(text, ";") {
		urls, err := redisSet(set)
		if err != nil {
			return fmt.Errorf("set %d %w", len(sets)+1, err)
		}
		sets = append(sets, urls)
	}
	*r = sets
	return nil
}

func redisSet(text string) ([]string, error) {
	var urls []string
	for i, address := range strings.Split(text, ",") {
		u, ok := redisURL(strings.TrimSpace(address))
		if !ok {
			return nil, fmt.Errorf("has an address, number %d, that is not host:port or a URL such as redis://user:password@host:6379/0 or rediss://… (a comma in a password is written %%2C, a semicolon %%3B)", i+1)
		}
		urls = append(urls, u)
	}
	switch len(urls) {
	case 1, 3, 5, 7:
		return urls, nil
	default:
		return nil, fmt.Errorf("names %d nodes: must be 1, 3, 5 or 7", len(urls))
	}
}

func redisURL(address string) (string, bool) {
	if !strings.Contains(address, "://") {
		host, port, err := net.SplitHostPort(address)
		if err != nil || host == "" || strings.ContainsAny(host, "/@?#") {
			return "", false
		}
		if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			return "", false
		}
		return (&url.URL{Scheme: "redis", Host: net.JoinHostPort(host, port)}).String(), true
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" {
		return "", false
	}
	return address, true
}
