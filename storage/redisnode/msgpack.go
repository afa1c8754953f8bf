package redisnode

import (
	"encoding/binary"
	"strconv"
)

// The forms of MessagePack that vote.lua and this package exchange: arrays, strings and whole numbers. The
// code is written by hand because a library, with its values and reflection, would allocate memory for every
// request. This code appends to a reused buffer.

const (
	packSmall   = 0x80 // a smaller byte is the number itself
	packArray16 = 0xdc
	packArray32 = 0xdd
	packStr8    = 0xd9
	packStr16   = 0xda
	packStr32   = 0xdb
	packUint8   = 0xcc
	packUint64  = 0xcf
	packInt64   = 0xd3
)

// packer writes one array of strings and numbers. It reuses its memory.
type packer struct {
	buf []byte
	n   uint32
}

// packerHead is the space for the array's length, which is written last.
const packerHead = 5

func (p *packer) reset() {
	p.buf = append(p.buf[:0], packArray32, 0, 0, 0, 0)
	p.n = 0
}

func (p *packer) str(s string) {
	p.head(len(s))
	p.buf = append(p.buf, s...)
}

func (p *packer) strs(texts ...string) {
	for _, text := range texts {
		p.str(text)
	}
}

// joined writes several texts as one string.
func (p *packer) joined(texts ...string) {
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	p.head(size)
	for _, text := range texts {
		p.buf = append(p.buf, text...)
	}
}

// int writes a number as decimal text.
func (p *packer) int(v int64) {
	var digits [20]byte
	p.str(string(strconv.AppendInt(digits[:0], v, 10)))
}

// number writes a number in binary.
func (p *packer) number(v int64) {
	p.n++
	p.buf = binary.BigEndian.AppendUint64(append(p.buf, packInt64), uint64(v))
}

func (p *packer) head(size int) {
	const fix, maxFix, max8, max16 = 0xa0, 31, 0xff, 0xffff
	p.n++
	switch {
	case size <= maxFix:
		p.buf = append(p.buf, fix|byte(size))
	case size <= max8:
		p.buf = append(p.buf, packStr8, byte(size))
	case size <= max16:
		p.buf = binary.BigEndian.AppendUint16(append(p.buf, packStr16), uint16(size))
	default:
		p.buf = binary.BigEndian.AppendUint32(append(p.buf, packStr32), uint32(size))
	}
}

// bytes returns the array, valid until reset.
func (p *packer) bytes() []byte {
	binary.BigEndian.PutUint32(p.buf[1:packerHead], p.n)
	return p.buf
}

// unpacker reads from the front of a text. An error sets bad, and then every further read returns a zero
// value.
type unpacker struct {
	rest string
	bad  bool
}

// take cuts n bytes off the front.
func (u *unpacker) take(n int) string {
	if u.bad || n < 0 || n > len(u.rest) {
		u.bad = true
		return ""
	}
	head := u.rest[:n]
	u.rest = u.rest[n:]
	return head
}

// uint reads a big-endian number of n bytes.
func (u *unpacker) uint(n int) (v int) {
	for _, b := range []byte(u.take(n)) {
		v = v<<8 | int(b)
	}
	return v
}

func (u *unpacker) kind() byte {
	if head := u.take(1); head != "" {
		return head[0]
	}
	return 0xc1 // a kind that MessagePack never uses
}

func (u *unpacker) isArray() bool {
	return !u.bad && u.rest != "" && (u.rest[0]&0xf0 == 0x90 || u.rest[0] == packArray16 || u.rest[0] == packArray32)
}

// number reads a non-negative whole number; ok is false if the next value is something else.
func (u *unpacker) number() (v int64, ok bool) {
	if u.bad || u.rest == "" {
		return 0, false
	}
	switch k := u.rest[0]; {
	case k < packSmall:
		return int64(u.kind()), true
	case k >= packUint8 && k <= packUint64: // of 1, 2, 4 or 8 bytes
		u.kind()
		v = int64(u.uint(1 << (k - packUint8)))
		return v, !u.bad
	}
	return 0, false
}

// array reads the length of an array.
func (u *unpacker) array() int {
	switch k := u.kind(); {
	case k&0xf0 == 0x90:
		return int(k & 0x0f)
	case k == packArray16:
		return u.uint(2)
	case k == packArray32:
		return u.uint(4)
	}
	u.bad = true
	return 0
}

func (u *unpacker) str() string {
	switch k := u.kind(); {
	case k&0xe0 == 0xa0:
		return u.take(int(k & 0x1f))
	case k == packStr8:
		return u.take(u.uint(1))
	case k == packStr16:
		return u.take(u.uint(2))
	case k == packStr32:
		return u.take(u.uint(4))
	}
	u.bad = true
	return ""
}
