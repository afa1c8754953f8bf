package access

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Bounds of the file.
const (
	maxNameBytes  = 64
	maxPrefix     = 256
	everything    = "*" // stands for all resources if it is the prefix
	tokenPrefix   = "sha256:"
	maxRequests   = 1e6
	maxCount      = 1_000_000
	maxBytes      = 1 << 40
	maxClaimBytes = 1024
)

// end is the last line of the file, except for comments. A file without it is incomplete, and may lack the
// rule that takes a right away.
const end = "end"

func isEnd(line string) bool {
	fields := strings.Fields(line)
	return len(fields) == 1 && fields[0] == end && strings.HasSuffix(line, "\n")
}

var (
	errNoEnd    = errors.New("the last line must be end, so that a file which is half written is not taken for a whole one")
	errAfterEnd = errors.New("nothing but comments may follow the line end")
)

// Policy is a parsed file. It is immutable.
type Policy struct {
	tokens map[uint64]credential // by the first bytes of the token's SHA-256
	certs  map[string]*Identity
	claims map[string]*Identity // by the claim that names the caller of a JWT
	names  map[string]*Identity
}

type credential struct {
	hash [sha256.Size]byte
	who  *Identity
}

// Identities is how many names the file has.
func (p *Policy) Identities() int { return len(p.names) }

// find returns the identity with these credentials, or nil.
func (p *Policy) find(shown *credentials) *Identity {
	switch shown.kind {
	case jsonWebToken:
		return p.claims[shown.claim]
	case certificate:
		for _, name := range shown.certs {
			if who := p.certs[name]; who != nil {
				return who
			}
		}
		return nil
	default:
		return p.byToken(&shown.token)
	}
}

func hashToken(token string) [sha256.Size]byte {
	var room [128]byte // longer tokens cost an allocation
	return sha256.Sum256(append(room[:0], token...))
}

// byToken returns the identity whose bearer token has this hash, or nil.
//
// Its timing reveals nothing useful: a caller cannot choose the bits of a hash, and the whole hash is compared
// in constant time.
func (p *Policy) byToken(hash *[sha256.Size]byte) *Identity {
	found, ok := p.tokens[binary.BigEndian.Uint64(hash[:])]
	if !ok || subtle.ConstantTimeCompare(found.hash[:], hash[:]) != 1 {
		return nil
	}
	return found.who
}

// Parse reads a file. The error names every bad line by its number, and quotes none:
// it may hold a secret.
func Parse(text string) (*Policy, error) {
	p := &Policy{
		tokens: make(map[uint64]credential), certs: make(map[string]*Identity),
		claims: make(map[string]*Identity), names: make(map[string]*Identity),
	}
	var bad []error
	number, ended := 0, false
	for line := range strings.Lines(text) {
		number++
		fields := strings.Fields(line)
		var err error
		switch {
		case len(fields) == 0 || strings.HasPrefix(fields[0], "#"):
		case ended:
			err = errAfterEnd
		case isEnd(line):
			ended = true
		default:
			err = p.add(fields[0], fields[1:])
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("line %d: %w", number, err))
		}
	}
	if !ended {
		bad = append(bad, errNoEnd)
	}
	return p, errors.Join(bad...)
}

// Append adds a line to a file's text ("" for a new file). It returns Parse's error for the new text.
func Append(text, line string) (string, error) {
	if text == "" {
		text = end + "\n"
	}
	var b strings.Builder
	for l := range strings.Lines(text) {
		if isEnd(l) {
			b.WriteString(line + "\n")
		}
		b.WriteString(l)
	}
	_, err := Parse(b.String())
	return b.String(), err
}

func (p *Policy) add(name string, fields []string) error {
	if !validName(name) {
		return fmt.Errorf("the name must be 1 to %d letters, digits, '.', '_', '-', '@', '/' or ':', and not %s", maxNameBytes, end)
	}
	if p.names[name] != nil {
		return fmt.Errorf("the name %s occurs twice; several tokens, certificates and rules of a name belong on one line", name)
	}
	who := &Identity{name: name, usage: newUsage()}
	p.names[name] = who
	credentials := 0
	for _, field := range fields {
		key, value, found := strings.Cut(field, "=")
		if !found {
			return errUnknownField
		}
		known, err := p.credential(who, key, value)
		if err == nil && !known {
			err = who.setting(key, value)
		}
		if err != nil {
			return err
		}
		if known {
			credentials++
		}
	}
	if credentials == 0 {
		return fmt.Errorf("%s has no token=, cert= or jwt=, so no caller can be it", name)
	}
	slices.SortFunc(who.rules, func(a, b rule) int { return cmp.Compare(len(b.prefix), len(a.prefix)) })
	return nil
}

var errUnknownField = errors.New("a field must be one of token=, cert=, jwt=, none=, read=, acquire=, admin=, requests=, waiters=, held=, records=, bytes=; a space in a value is written %20")

func validName(name string) bool {
	if len(name) > maxNameBytes {
		return false
	}
	for _, c := range []byte(name) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && !strings.ContainsRune("._-@/:", rune(c)) {
			return false
		}
	}
	return name != "" && name != end
}

// credential reads a field with a credential.
func (p *Policy) credential(who *Identity, key, value string) (known bool, err error) {
	switch key {
	case "token":
		return true, p.addToken(who, value)
	case "cert":
		return true, addName(p.certs, who, key, value)
	case "jwt":
		return true, addName(p.claims, who, key, value)
	default:
		return false, nil
	}
}

func (p *Policy) addToken(who *Identity, value string) error {
	text, found := strings.CutPrefix(value, tokenPrefix)
	hash, err := hex.DecodeString(text)
	if !found || err != nil || len(hash) != sha256.Size {
		return errors.New("token= must be sha256: and the 64 hexadecimal digits of the token's SHA-256, as fencelock token new prints it; a token itself does not belong in the file")
	}
	at := binary.BigEndian.Uint64(hash)
	if _, taken := p.tokens[at]; taken {
		return errors.New("the token occurs twice")
	}
	p.tokens[at] = credential{hash: [sha256.Size]byte(hash), who: who}
	return nil
}

func addName(names map[string]*Identity, who *Identity, key, value string) error {
	name, err := url.PathUnescape(value)
	switch {
	case err != nil || name == "" || len(name) > maxClaimBytes:
		return fmt.Errorf("%s= must name something, percent-encoded where it holds a space or a %%", key)
	case names[name] != nil:
		return fmt.Errorf("a %s= occurs twice", key)
	}
	names[name] = who
	return nil
}

// setting reads a field that is a rule or a limit.
func (i *Identity) setting(key, value string) error {
	if right := slices.Index(rightNames[:], key); right >= 0 {
		return i.addRule(Right(right), value)
	}
	switch key {
	case "requests":
		n, err := strconv.ParseFloat(strings.TrimSuffix(value, "/s"), 64)
		if err != nil || !(n >= 0.001 && n <= maxRequests) {
			return fmt.Errorf("requests= must be a rate per second from 0.001 to %.0f", float64(maxRequests))
		}
		i.limits.requests = n
		return nil
	case "waiters":
		return count(key, value, maxCount, &i.limits.waiters)
	case "held":
		return count(key, value, maxCount, &i.limits.held)
	case "records":
		return count(key, value, maxCount, &i.limits.records)
	case "bytes":
		return count(key, value, maxBytes, &i.limits.bytes)
	}
	return errUnknownField
}

func count(key, value string, most int, into *int) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > most {
		return fmt.Errorf("%s= must be a whole number from 1 to %d", key, most)
	}
	*into = n
	return nil
}

func (i *Identity) addRule(right Right, value string) error {
	prefix, err := url.PathUnescape(value)
	if err != nil || value == "" || len(prefix) > maxPrefix {
		return fmt.Errorf("%s= must be the beginning of resources' names, at most %d bytes, or * for all; a space is written %%20, a leading star %%2A", right, maxPrefix)
	}
	if value == everything {
		prefix = ""
	}
	for _, r := range i.rules {
		if r.prefix == prefix {
			return errors.New("two rules are for the same prefix: each right contains the ones before it (read, acquire, admin), so keep one")
		}
	}
	i.rules = append(i.rules, rule{prefix: prefix, right: right})
	return nil
}

// inherit takes over the usage counts of the keeper's previous policy.
func (p *Policy) inherit(k *Keeper) {
	before := k.policy.Load()
	for name, who := range p.names {
		who.keeper = k
		if before != nil && before.names[name] != nil {
			who.usage = before.names[name].usage
		}
		who.usage.adopt(who.limits)
	}
}
