package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// maxDepth is deeper than any tree of buckets and pages that fits into a file.
const maxDepth = 64

// errTime ends a check when its time limit has passed.
var errTime = errors.New("the time is over")

// Check reads a bbolt file page by page, without mapping it. It returns an error unless the file's structure
// is the one that bbolt v1 leaves after a transaction:
//
//   - Both meta pages are whole.
//   - Every page in use is inside the file and contains its own number.
//   - No page is used twice, or is both used and free.
//   - The entries of a page follow each other without gaps, inside the page, with rising keys.
//   - The first key of a page equals its key in the parent page, and all its keys are below the
//     parent's next key.
//
// Check does not see a change in a key or value that keeps the order of keys (Seal does). Nor does it see
// pages that are neither used nor free, which only cost space. The file must not be written meanwhile. Without
// a limit, Check reads all pages in use. With a limit, it stops after that time. It returns the part of the
// pages that it read, 0 to 1.
func Check(file *os.File, limit time.Duration) (checked float64, err error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	m, err := readMetas(file, info.Size())
	if err != nil {
		return 0, err
	}
	c := &checker{file: file, meta: m, seen: make([]bool, m.pages)}
	if limit > 0 {
		c.until = time.Now().Add(limit)
	}
	err = c.all()
	if errors.Is(err, errTime) {
		return float64(c.count) / float64(m.pages), nil
	}
	return 1, err
}

// checker visits the pages of a file, from the root down.
type checker struct {
	file  io.ReaderAt
	meta  meta
	seen  []bool // pages that are used or free
	count uint64 // number of pages marked in seen
	until time.Time
}

func (c *checker) all() error {
	c.seen[0], c.seen[1] = true, true
	c.count = 2
	if err := c.freelist(); err != nil {
		return err
	}
	return c.tree(c.meta.root, bounds{}, 0)
}

// claim marks n pages from id on as used or free. It fails if one is marked already.
func (c *checker) claim(id, n uint64) error {
	if id < 2 || id >= c.meta.pages || n > c.meta.pages-id {
		return fmt.Errorf("page %d (and %d that follow) is outside the %d pages in use", id, n-1, c.meta.pages)
	}
	for i := id; i < id+n; i++ {
		if c.seen[i] {
			return fmt.Errorf("page %d is used twice, or both used and free", i)
		}
		c.seen[i] = true
	}
	c.count += n
	return nil
}

// read reads a page with its overflow pages.
func (c *checker) read(id uint64) (page, error) {
	if !c.until.IsZero() && time.Now().After(c.until) {
		return nil, errTime
	}
	if id < 2 || id >= c.meta.pages {
		return nil, fmt.Errorf("page %d is outside the %d pages in use", id, c.meta.pages)
	}
	raw, err := c.bytes(id, 1)
	if err != nil {
		return nil, err
	}
	p := page(raw)
	if p.id() != id {
		return nil, fmt.Errorf("page %d says that it is page %d", id, p.id())
	}
	length := 1 + uint64(p.overflow())
	if err := c.claim(id, length); err != nil || length == 1 {
		return p, err
	}
	raw, err = c.bytes(id, length)
	return page(raw), err
}

func (c *checker) bytes(id, n uint64) ([]byte, error) {
	raw := make([]byte, n*c.meta.pageSize)
	if _, err := c.file.ReadAt(raw, int64(id*c.meta.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return raw, nil
}

// freelist claims the free pages.
func (c *checker) freelist() error {
	p, err := c.read(c.meta.freelist)
	if err != nil {
		return fmt.Errorf("the list of free pages: %w", err)
	}
	ids, err := p.freeIDs()
	if err != nil {
		return fmt.Errorf("the list of free pages, page %d: %w", c.meta.freelist, err)
	}
	for i, id := range ids {
		if i > 0 && id <= ids[i-1] {
			return fmt.Errorf("the list of free pages, page %d: out of order", c.meta.freelist)
		}
		if err := c.claim(id, 1); err != nil {
			return fmt.Errorf("the list of free pages: %w", err)
		}
	}
	return nil
}

// bounds limits the keys of a page: min is the first key, and all keys are below max. nil means no bound. When
// bbolt writes, it finds a page's entry in the parent by the page's first key. If that key differs, bbolt adds
// a second entry and keeps the entry of the freed page.
type bounds struct{ min, max []byte }

// tree checks a page and all pages below it.
func (c *checker) tree(id uint64, within bounds, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d lies more than %d pages deep", id, maxDepth)
	}
	p, err := c.read(id)
	if err != nil {
		return err
	}
	entries, err := p.entries()
	if err == nil {
		err = ordered(entries, within)
	}
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	for i, e := range entries {
		if err := c.below(e, entries[i+1:], within, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// below checks the target of an entry: a page of the same tree, or a bucket.
func (c *checker) below(e entry, next []entry, within bounds, depth int) error {
	switch {
	case e.isBranch:
		child := bounds{min: e.key, max: within.max}
		if len(next) > 0 {
			child.max = next[0].key
		}
		return c.tree(e.child, child, depth)
	case e.isBucket:
		return c.bucket(e, depth)
	}
	return nil
}

func (c *checker) bucket(e entry, depth int) error {
	if len(e.value) < bucketLen {
		return fmt.Errorf("bucket %q: its entry is too short", e.key)
	}
	if root := number64(e.value); root != 0 {
		return c.tree(root, bounds{}, depth)
	}
	inline := page(e.value[bucketLen:])
	if len(inline) < pageHeader || inline.flags() != leafPage {
		return fmt.Errorf("bucket %q: its page is not a leaf page", e.key)
	}
	entries, err := inline.entries()
	if err == nil {
		err = ordered(entries, bounds{})
	}
	if err != nil {
		return fmt.Errorf("bucket %q: %w", e.key, err)
	}
	return nil
}

func ordered(entries []entry, within bounds) error {
	for i, e := range entries {
		switch {
		case len(e.key) == 0:
			return errors.New("a key is empty")
		case i > 0 && bytes.Compare(entries[i-1].key, e.key) >= 0:
			return errors.New("its keys are not in order")
		case i == 0 && within.min != nil && !bytes.Equal(e.key, within.min):
			return errors.New("its first key is not the one that the page above it has for it")
		case within.max != nil && bytes.Compare(e.key, within.max) >= 0:
			return errors.New("a key is above what the page above it says")
		}
	}
	return nil
}
