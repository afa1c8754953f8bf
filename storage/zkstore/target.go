package zkstore

import (
	"errors"
	"net"
	"net/url"
	"strings"
)

// Scheme begins the URL of a store.
const Scheme = "zookeeper://"

const defaultPort = "2181"

// target is the content of a store's URL.
type target struct {
	hosts          []string // host:port
	user, password string   // "" for none
	path           string   // "/a/b"
}

// errMalformedURL does not show the URL, because it contains a password.
var errMalformedURL = errors.New("the URL is not valid; it should look like zookeeper://user:password@a:2181,b:2181,c:2181/fencelock: the servers, and a path that only this cluster uses (user and password only if they protect the path)")

// parse reads a URL by hand, because net/url does not support lists of hosts.
func parse(raw string) (t target, err error) {
	rest, ok := strings.CutPrefix(raw, Scheme)
	if !ok {
		return t, errMalformedURL
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		t.user, err = url.PathUnescape(user)
		if err == nil {
			t.password, err = url.PathUnescape(password)
		}
		if err != nil || t.user == "" || t.password == "" {
			return t, errMalformedURL
		}
		rest = rest[at+1:]
	}
	hosts, path, _ := strings.Cut(rest, "/")
	t.path = "/" + strings.TrimSuffix(path, "/")
	for host := range strings.SplitSeq(hosts, ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), defaultPort)
		}
		if strings.HasPrefix(host, ":") {
			return t, errMalformedURL
		}
		t.hosts = append(t.hosts, host)
	}
	if !validPath(t.path) {
		return t, errMalformedURL
	}
	return t, nil
}

// validPath refuses ZooKeeper's own nodes, and its root.
func validPath(path string) bool {
	if path == "/" || path == "/zookeeper" || strings.HasPrefix(path, "/zookeeper/") || strings.ContainsAny(path, "?#\x00") {
		return false
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}
