package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// The layout of a bbolt file, format 2, as go.etcd.io/bbolt/internal/common
// declares it. Numbers are in the machine's own order. A page begins with
//
//	0 id (8)   8 flags (2)   10 count (2)   12 overflow (4): pages that follow as part of it
//
// and continues with count elements, then with what they point to, in the same
// order and without gaps. Positions count from the element's own beginning.
//
//	meta      0 magic (4)  4 version (4)  8 page size (4)  12 flags (4)  16 root page (8)  24 sequence (8)
//	          32 page of the free list (8)  40 pages in use (8)  48 transaction (8)  56 FNV-1a of 0 to 55
//	branch    0 position (4)  4 key length (4)  8 child page (8)
//	leaf      0 flags (4)  4 position (4)  8 key length (4)  12 value length (4)
//	freelist  page numbers (8); if count is 0xFFFF, the first one is the count
//	bucket    (a leaf's value) 0 root page (8)  8 sequence (8); a root of 0 is followed by a leaf page
const (
	branchPage   = 0x01
	leafPage     = 0x02
	metaPage     = 0x04
	freelistPage = 0x10

	pageHeader = 16
	elementLen = 16 // of branch and of leaf
	bucketLen  = 16
	metaLen    = 64

	magic       = 0xED0CDAED
	version     = 2
	bucketFlag  = 0x01
	manyFree    = 0xFFFF
	minPageSize = 1 << 10
	maxPageSize = 1 << 24
)

func number16(raw []byte) uint16 { return binary.NativeEndian.Uint16(raw) }
func number32(raw []byte) uint32 { return binary.NativeEndian.Uint32(raw) }
func number64(raw []byte) uint64 { return binary.NativeEndian.Uint64(raw) }

// meta is the content of a meta page.
type meta struct {
	pageSize, root, freelist, pages, transaction uint64
}

// readMetas returns the newer of the two meta pages. Both must be whole. A broken one may be that of the last
// transaction, and the older one does not know the tokens that the last transaction granted.
func readMetas(file io.ReaderAt, size int64) (meta, error) {
	first, err := readMeta(file, 0)
	if err != nil {
		return meta{}, fmt.Errorf("its first page: %w", err)
	}
	second, err := readMeta(file, int64(first.pageSize))
	switch {
	case err != nil:
		return meta{}, fmt.Errorf("its second page: %w", err)
	case second.pageSize != first.pageSize:
		return meta{}, errors.New("its first two pages differ in the page size")
	}
	newest := first
	if second.transaction > first.transaction {
		newest = second
	}
	if have := uint64(size) / newest.pageSize; newest.pages > have {
		return meta{}, fmt.Errorf("it is cut off: it has %d bytes, and %d pages of %d bytes are in use", size, newest.pages, newest.pageSize)
	}
	return newest, nil
}

func readMeta(file io.ReaderAt, at int64) (m meta, err error) {
	raw := make([]byte, pageHeader+metaLen)
	if _, err := file.ReadAt(raw, at); err != nil {
		return m, fmt.Errorf("read it: %w", err)
	}
	if page(raw).flags() != metaPage {
		return m, errors.New("it is not a bbolt file, or its beginning is overwritten")
	}
	raw = raw[pageHeader:]
	sum := fnv.New64a()
	_, _ = sum.Write(raw[:metaLen-8])
	m = meta{
		pageSize: uint64(number32(raw[8:])), root: number64(raw[16:]), freelist: number64(raw[32:]),
		pages: number64(raw[40:]), transaction: number64(raw[48:]),
	}
	switch {
	case number32(raw) != magic || number32(raw[4:]) != version:
		return m, errors.New("it is not a bbolt file of format 2")
	case number64(raw[metaLen-8:]) != sum.Sum64():
		return m, errors.New("its checksum is wrong: the last transaction may be lost")
	case m.pageSize < minPageSize || m.pageSize > maxPageSize || m.pages < 4:
		return m, errors.New("its numbers contradict each other")
	}
	return m, nil
}

// page is a page's content, at least its header.
type page []byte

func (p page) id() uint64       { return number64(p) }
func (p page) flags() uint16    { return number16(p[8:]) }
func (p page) count() uint16    { return number16(p[10:]) }
func (p page) overflow() uint32 { return number32(p[12:]) }

// entry is an element of a branch or of a leaf.
type entry struct {
	isBranch, isBucket bool
	key, value         []byte
	child              uint64
}

// entries returns the elements of a branch or leaf page. It checks that each lies where bbolt puts it.
func (p page) entries() ([]entry, error) {
	isBranch := p.flags() == branchPage
	if !isBranch && p.flags() != leafPage {
		return nil, fmt.Errorf("it is neither a branch nor a leaf (flags %#x)", p.flags())
	}
	n := int(p.count())
	next := pageHeader + n*elementLen // where the next key must be
	if next > len(p) || isBranch && n == 0 {
		return nil, fmt.Errorf("it cannot have %d entries", n)
	}
	if n == 0 && len(bytes.Trim(p[pageHeader:], "\x00")) > 0 {
		return nil, errors.New("it is marked as empty, and is not")
	}
	entries := make([]entry, n)
	for i := range entries {
		e, ok := p.entry(i, isBranch, next)
		if !ok {
			return nil, fmt.Errorf("entry %d is not where it must be", i)
		}
		entries[i], next = e, next+len(e.key)+len(e.value)
	}
	return entries, nil
}

// entry returns element i, whose key must begin at next.
func (p page) entry(i int, isBranch bool, next int) (e entry, ok bool) {
	at := pageHeader + i*elementLen
	raw := p[at : at+elementLen]
	e.isBranch = isBranch
	flags, position, keyLen, valueLen := uint32(0), number32(raw), number32(raw[4:]), uint32(0)
	if isBranch {
		e.child = number64(raw[8:])
	} else {
		flags, position, keyLen, valueLen = number32(raw), number32(raw[4:]), number32(raw[8:]), number32(raw[12:])
		e.isBucket = flags == bucketFlag
	}
	end := uint64(next) + uint64(keyLen) + uint64(valueLen)
	if flags > bucketFlag || uint64(at)+uint64(position) != uint64(next) || end > uint64(len(p)) {
		return e, false
	}
	e.key, e.value = p[next:next+int(keyLen)], p[next+int(keyLen):end]
	return e, true
}

// freeIDs returns the page numbers in a list of free pages.
func (p page) freeIDs() ([]uint64, error) {
	if p.flags() != freelistPage {
		return nil, fmt.Errorf("it is not one (flags %#x)", p.flags())
	}
	raw, n := p[pageHeader:], uint64(p.count())
	if n == manyFree {
		raw, n = raw[8:], number64(raw)
	}
	if n > uint64(len(raw))/8 {
		return nil, fmt.Errorf("it cannot have %d entries", n)
	}
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = number64(raw[8*i:])
	}
	return ids, nil
}
