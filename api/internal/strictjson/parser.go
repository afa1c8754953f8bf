// Package strictjson reads JSON (RFC 8259) in one pass and refuses everything
// that two readers could understand differently: duplicate keys at any depth,
// anything after the value, invalid UTF-8, escapes of lone surrogates, and
// nesting deeper than MaxDepth.
//
// encoding/json is not used for requests because it takes the last of two
// equal keys, matches keys without regard to case, repairs invalid UTF-8
// silently, and needs a second pass to find out which members were there.
package strictjson

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects may nest.
const MaxDepth = 64

// SyntaxError says where a text stops being strict JSON. Offset counts bytes from 0.
type SyntaxError struct {
	Offset int
	Reason string // half a sentence
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s at byte %d", e.Reason, e.Offset)
}

// TypeError says that a value is well begun but of another type than was
// asked for. It is for the caller, who knows the field's name, to put into words.
type TypeError struct{ Want string }

func (e *TypeError) Error() string { return "must be " + e.Want }

// Parser reads one JSON text. The zero value is of no use; call New.
type Parser struct {
	data  []byte
	pos   int
	depth int
}

// New returns a parser at the start of data, which it never changes. What the
// parser returns as a slice is a part of data.
func New(data []byte) *Parser { return &Parser{data: data} }

// Object reads an object and calls member for each key, in order. member must
// read exactly one value, and its error ends the reading. A value of another
// type is a *TypeError.
func (p *Parser) Object(member func(key []byte) error) error {
	p.space()
	if p.peek() != '{' {
		return p.wrongType("a JSON object")
	}
	return p.object(member)
}

// Array reads an array and calls element for each of its values, in order.
// element must read exactly one value, and its error ends the reading. A value
// of another type is a *TypeError.
func (p *Parser) Array(element func() error) error {
	p.space()
	if p.peek() != '[' {
		return p.wrongType("an array")
	}
	return p.array(element)
}

// String reads a string.
func (p *Parser) String() (string, error) {
	p.space()
	if p.peek() != '"' {
		return "", p.wrongType("a string")
	}
	text, err := p.text()
	return string(text), err
}

// Int reads a number that is written without fraction and exponent and fits
// in 64 bits; another number is a *TypeError like any other type.
func (p *Parser) Int() (int64, error) {
	p.space()
	start := p.pos
	if err := p.number(); err != nil {
		return 0, p.wrongType("a whole number")
	}
	n, err := strconv.ParseInt(string(p.data[start:p.pos]), 10, 64)
	if err != nil {
		return 0, &TypeError{Want: "a whole number"}
	}
	return n, nil
}

// Raw reads any value and returns its text without the space around it.
func (p *Parser) Raw() ([]byte, error) {
	p.space()
	start := p.pos
	if err := p.value(); err != nil {
		return nil, err
	}
	return p.data[start:p.pos], nil
}

// End refuses anything but space after the value.
func (p *Parser) End() error {
	p.space()
	if p.pos < len(p.data) {
		return p.syntax("there is more after the JSON value")
	}
	return nil
}

// wrongType is a *TypeError where some value begins, and a *SyntaxError where none does.
func (p *Parser) wrongType(want string) error {
	switch c := p.peek(); {
	case c == '{', c == '[', c == '"', c == '-', c == 't', c == 'f', c == 'n', isDigit(c):
		return &TypeError{Want: want}
	default:
		return p.syntax("a JSON value is expected")
	}
}

func (p *Parser) syntax(reason string) error {
	return &SyntaxError{Offset: p.pos, Reason: reason}
}

// peek gives the next byte, 0 at the end (no JSON token begins with NUL).
func (p *Parser) peek() byte {
	if p.pos < len(p.data) {
		return p.data[p.pos]
	}
	return 0
}

func (p *Parser) space() {
	for p.pos < len(p.data) {
		switch p.data[p.pos] {
		case ' ', '\t', '\r', '\n':
			p.pos++
		default:
			return
		}
	}
}

func (p *Parser) value() error {
	p.space()
	switch p.peek() {
	case '{':
		return p.object(func([]byte) error { return p.value() })
	case '[':
		return p.array(p.value)
	case '"':
		_, err := p.text()
		return err
	case 't':
		return p.literal("true")
	case 'f':
		return p.literal("false")
	case 'n':
		return p.literal("null")
	default:
		return p.number()
	}
}

func (p *Parser) enter() error {
	p.pos++
	if p.depth++; p.depth > MaxDepth {
		return p.syntax(fmt.Sprintf("nested deeper than %d levels", MaxDepth))
	}
	return nil
}

func (p *Parser) leave() {
	p.pos++
	p.depth--
}

func (p *Parser) array(element func() error) error {
	if err := p.enter(); err != nil {
		return err
	}
	if p.space(); p.peek() == ']' {
		p.leave()
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if more, err := p.more(']'); !more {
			return err
		}
	}
}

func (p *Parser) object(member func(key []byte) error) error {
	if err := p.enter(); err != nil {
		return err
	}
	if p.space(); p.peek() == '}' {
		p.leave()
		return nil
	}
	var seen keys
	for {
		if err := p.member(&seen, member); err != nil {
			return err
		}
		if more, err := p.more('}'); !more {
			return err
		}
	}
}

func (p *Parser) member(seen *keys, member func(key []byte) error) error {
	p.space()
	at := p.pos
	if p.peek() != '"' {
		return p.syntax("a key in double quotes is expected")
	}
	key, err := p.text()
	if err != nil {
		return err
	}
	if !seen.add(key) {
		return &SyntaxError{Offset: at, Reason: fmt.Sprintf("key %q occurs twice", clip(key))}
	}
	p.space()
	if p.peek() != ':' {
		return p.syntax("a colon is expected")
	}
	p.pos++
	return member(key)
}

// more steps over a comma, or over the end of an array or object.
func (p *Parser) more(end byte) (bool, error) {
	p.space()
	switch p.peek() {
	case ',':
		p.pos++
		return true, nil
	case end:
		p.leave()
		return false, nil
	default:
		return false, p.syntax(fmt.Sprintf("a comma or %q is expected", end))
	}
}

func (p *Parser) literal(word string) error {
	if len(p.data)-p.pos < len(word) || string(p.data[p.pos:p.pos+len(word)]) != word {
		return p.syntax("a JSON value is expected")
	}
	p.pos += len(word)
	return nil
}

// number steps over a number, or moves nothing if there is none.
func (p *Parser) number() error {
	at := p.pos
	if p.peek() == '-' {
		p.pos++
	}
	switch c := p.peek(); {
	case c == '0':
		p.pos++
	case isDigit(c):
		p.digits()
	default:
		p.pos = at
		return p.syntax("a JSON value is expected")
	}
	if p.peek() == '.' {
		p.pos++
		if !p.digits() {
			return p.syntax("a digit is expected")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if !p.digits() {
			return p.syntax("a digit is expected")
		}
	}
	return nil
}

func (p *Parser) digits() bool {
	start := p.pos
	for isDigit(p.peek()) {
		p.pos++
	}
	return p.pos > start
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// text reads a string that begins here. Without escapes, which is nearly
// always, the result is a part of the input and nothing is allocated.
func (p *Parser) text() ([]byte, error) {
	p.pos++
	start := p.pos
	for p.pos < len(p.data) {
		switch c := p.data[p.pos]; {
		case c == '"':
			p.pos++
			return p.data[start : p.pos-1], nil
		case c == '\\':
			return p.escapedText(start)
		case c < ' ':
			return nil, p.syntax("a string holds a control character that is not escaped")
		case c < utf8.RuneSelf:
			p.pos++
		default:
			if err := p.rune(); err != nil {
				return nil, err
			}
		}
	}
	return nil, p.syntax("a string has no end")
}

// escapedText goes on with a string that began at start and has an escape here.
func (p *Parser) escapedText(start int) ([]byte, error) {
	out := append([]byte(nil), p.data[start:p.pos]...)
	for p.pos < len(p.data) {
		from := p.pos
		switch c := p.data[p.pos]; {
		case c == '"':
			p.pos++
			return out, nil
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return nil, err
			}
			out = utf8.AppendRune(out, r)
			continue
		case c < ' ':
			return nil, p.syntax("a string holds a control character that is not escaped")
		case c < utf8.RuneSelf:
			p.pos++
		default:
			if err := p.rune(); err != nil {
				return nil, err
			}
		}
		out = append(out, p.data[from:p.pos]...)
	}
	return nil, p.syntax("a string has no end")
}

func (p *Parser) rune() error {
	r, size := utf8.DecodeRune(p.data[p.pos:])
	if r == utf8.RuneError && size == 1 {
		return p.syntax("a string is not valid UTF-8")
	}
	p.pos += size
	return nil
}

func (p *Parser) escape() (rune, error) {
	p.pos++
	c := p.peek()
	if c == 'u' {
		return p.unicodeEscape()
	}
	const from, to = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	for i := range len(from) {
		if from[i] == c {
			p.pos++
			return rune(to[i]), nil
		}
	}
	return 0, p.syntax("a string holds an unknown escape")
}

// unicodeEscape reads what follows a backslash: one \u or a surrogate pair of two.
func (p *Parser) unicodeEscape() (rune, error) {
	r, ok := p.hex4()
	if !ok {
		return 0, p.syntax(`\u needs four hexadecimal digits`)
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if p.peek() == '\\' {
		p.pos++
		if second, ok := p.hex4(); ok {
			if pair := utf16.DecodeRune(r, second); pair != utf8.RuneError {
				return pair, nil
			}
		}
	}
	return 0, p.syntax("a string holds half a surrogate pair")
}

// hex4 reads a u and four digits.
func (p *Parser) hex4() (rune, bool) {
	if len(p.data)-p.pos < len("u0000") || p.data[p.pos] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range p.data[p.pos+1 : p.pos+5] {
		digit, ok := hexDigit(c)
		if !ok {
			return 0, false
		}
		r = r<<4 | digit
	}
	p.pos += 5
	return r, true
}

func hexDigit(c byte) (rune, bool) {
	switch {
	case isDigit(c):
		return rune(c - '0'), true
	case 'a' <= c && c <= 'f':
		return rune(c - 'a' + 10), true
	case 'A' <= c && c <= 'F':
		return rune(c - 'A' + 10), true
	default:
		return 0, false
	}
}

// clip shortens a key for an error message.
func clip(key []byte) []byte {
	const most = 64
	return key[:min(len(key), most)]
}

// keys is the set of keys of one object. Few are compared one by one, without
// allocating; many go into a map, so that a body full of keys costs no
// quadratic time.
type keys struct {
	few  [8][]byte
	n    int
	many map[string]struct{}
}

// add reports whether key is new.
func (k *keys) add(key []byte) bool {
	for _, other := range k.few[:k.n] {
		if bytes.Equal(other, key) {
			return false
		}
	}
	if k.n < len(k.few) {
		k.few[k.n] = key
		k.n++
		return true
	}
	if _, ok := k.many[string(key)]; ok {
		return false
	}
	if k.many == nil {
		k.many = make(map[string]struct{})
	}
	k.many[string(key)] = struct{}{}
	return true
}
