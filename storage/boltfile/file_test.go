package boltfile_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/storage/boltfile"
)

func mustOpen(tb testing.TB, path string) *boltfile.File {
	tb.Helper()
	file, err := boltfile.Open(path, boltfile.Options{Timeout: time.Second})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = file.Close() })
	return file
}

// newFile makes a file with every kind of page, and some free pages.
func newFile(tb testing.TB) (path string, entries int) {
	tb.Helper()
	path = filepath.Join(tb.TempDir(), "test.db")
	file := mustOpen(tb, path)
	random := rand.New(rand.NewPCG(1, 2))
	for range 6 {
		if err := file.Update(func(tx *bbolt.Tx) error { return scribble(tx, random) }); err != nil {
			tb.Fatal(err)
		}
	}
	err := file.View(func(tx *bbolt.Tx) (err error) { entries, err = readAll(tx); return err })
	if err := errors.Join(err, file.Close()); err != nil {
		tb.Fatal(err)
	}
	return path, entries
}

// scribble puts and deletes entries at random: of a large bucket, of small ones
// inside one, and values of several pages.
func scribble(tx *bbolt.Tx, random *rand.Rand) error {
	large, err := tx.CreateBucketIfNotExists([]byte("large"))
	if err != nil {
		return err
	}
	nest, err := tx.CreateBucketIfNotExists([]byte("nest"))
	if err != nil {
		return err
	}
	for range 300 {
		key := fmt.Appendf(nil, "key %d", random.IntN(1000))
		if random.IntN(4) == 0 {
			err = errors.Join(err, large.Delete(key))
			continue
		}
		size := random.IntN(80)
		if random.IntN(60) == 0 {
			size = random.IntN(20_000)
		}
		err = errors.Join(err, large.Put(key, boltfile.Seal(key, bytes.Repeat([]byte("v"), size))))
	}
	for range 5 {
		name := fmt.Appendf(nil, "bucket %d", random.IntN(20))
		if nest.Bucket(name) != nil && random.IntN(3) == 0 {
			err = errors.Join(err, nest.DeleteBucket(name))
			continue
		}
		small, makeErr := nest.CreateBucketIfNotExists(name)
		if makeErr != nil {
			return makeErr
		}
		key := fmt.Appendf(nil, "%d", random.IntN(10))
		err = errors.Join(err, small.Put(key, boltfile.Seal(key, bytes.Repeat([]byte("s"), random.IntN(300)))))
	}
	return err
}

// readAll reads every entry of every bucket.
func readAll(tx *bbolt.Tx) (entries int, err error) {
	err = tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
		n, err := readBucket(b)
		entries += n
		return err
	})
	return entries, err
}

func readBucket(b *bbolt.Bucket) (entries int, err error) {
	err = b.ForEach(func(key, sealed []byte) error {
		if sealed == nil {
			n, err := readBucket(b.Bucket(key))
			entries += n
			return err
		}
		entries++
		_, err := boltfile.Unseal(key, sealed)
		return err
	})
	return entries, err
}

// TestSoundFilesAreAccepted: Check finds nothing in what bbolt writes, whatever
// was written before, and reads all of it.
func TestSoundFilesAreAccepted(t *testing.T) {
	for seed := range uint64(5) {
		path := filepath.Join(t.TempDir(), "test.db")
		random := rand.New(rand.NewPCG(seed, 0))
		for range 15 {
			file := mustOpen(t, path)
			if file.Checked() != 1 {
				t.Errorf("only %v of the file were checked", file.Checked())
			}
			if err := file.Update(func(tx *bbolt.Tx) error { return scribble(tx, random) }); err != nil {
				t.Fatal(err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// damage is one way to change a file.
type damage struct {
	name string
	do   func(raw []byte) []byte
}

// damages cuts the file at many sizes, and changes bytes in pages of every
// kind: some at random, and in each field of the header and first elements.
func damages(raw []byte) (all []damage) {
	random := rand.New(rand.NewPCG(3, 4))
	size := len(raw)
	cut := func(n int) {
		all = append(all, damage{fmt.Sprintf("cut to %d bytes", n), func(raw []byte) []byte { return raw[:n] }})
	}
	for _, n := range []int{0, 1, 79, 80, 512, 4095, 4096, 4097, 8191, 8192, 12288, 16384} {
		cut(n)
	}
	for range 60 {
		cut(random.IntN(size))
	}
	page := os.Getpagesize()
	change := func(at int, value byte) {
		name := fmt.Sprintf("page %d (flags %d), byte %d: %#x for %#x", at/page, raw[at-at%page+8], at%page, value, raw[at])
		all = append(all, damage{name, func(raw []byte) []byte { raw[at] = value; return raw }})
	}
	kinds := map[byte]int{}
	for start := 0; start+page <= size; start += page {
		kind := raw[start+8]
		isPage := binary.NativeEndian.Uint64(raw[start:]) == uint64(start/page)
		if kinds[kind]++; !isPage || kinds[kind] > 3 {
			continue
		}
		for at := range 80 {
			change(start+at, raw[start+at]^byte(1<<random.IntN(8)))
		}
		for range 30 {
			change(start+random.IntN(page), byte(random.IntN(256)))
		}
	}
	for _, kind := range []byte{1, 2, 4, 16} {
		if kinds[kind] == 0 {
			panic(fmt.Sprintf("the file has no page of kind %d", kind))
		}
	}
	return all
}

// childVariable makes the test program the child of TestDamage.
const childVariable = "BOLTFILE_TEST_CHILD"

// lastDamage is the end of the name of the file in which the child notes what it tries, in case it is killed. Its
// output has only errors, of which the first say most.
const lastDamage = ".damage"

// TestDamage damages a file in many ways, in a separate process, because a fault would end the process. Each time one
// of three things holds: the file is refused with a DamagedError, everything in it is as it was, or the seal shows
// the difference.
func TestDamage(t *testing.T) {
	if path := os.Getenv(childVariable); path != "" {
		damageAll(t, path)
		return
	}
	path, _ := newFile(t)
	ctx := t.Context()
	if end, ok := t.Deadline(); ok { // bbolt would follow a circle of pages for ever
		const toSay = 10 * time.Second
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-toSay))
		defer cancel()
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestDamage$", "-test.v")
	cmd.Env = append(os.Environ(), childVariable+"="+path)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestDamage")) {
		last, _ := os.ReadFile(path + lastDamage)
		t.Errorf("%v (%v): the last damage was %q; the first of %d bytes:\n%s", err, ctx.Err(), last, len(out), out[:min(len(out), 5000)])
	}
}

func damageAll(t *testing.T, path string) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	entries := 0
	_ = mustOpen(t, path).View(func(tx *bbolt.Tx) (err error) { entries, err = readAll(tx); return err })
	refused, accepted := 0, 0
	for _, d := range damages(raw) {
		changed := filepath.Join(t.TempDir(), "damaged.db")
		if err := os.WriteFile(changed, d.do(bytes.Clone(raw)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+lastDamage, []byte(d.name), 0o600); err != nil {
			t.Fatal(err)
		}
		if use(t, d.name, changed, entries) {
			accepted++
		} else {
			refused++
		}
	}
	t.Logf("%d files refused, %d accepted", refused, accepted)
	if refused < 200 || accepted < 20 {
		t.Error("the damages are not what they were")
	}
}

// use opens a damaged file, and reports whether it was accepted.
func use(t *testing.T, name, path string, entries int) bool {
	t.Helper()
	file, err := boltfile.Open(path, boltfile.Options{Timeout: time.Second})
	if err != nil {
		damaged, isDamaged := errors.AsType[*boltfile.DamagedError](err)
		if !isDamaged || damaged.Path != path || !strings.Contains(err.Error(), "Move it away") {
			t.Errorf("%s: refused with %v", name, err)
		}
		return false
	}
	found := 0
	err = file.View(func(tx *bbolt.Tx) (err error) { found, err = readAll(tx); return err })
	if errors.Is(err, boltfile.ErrSeal) {
		wantDamage(t, file.Err())
		return false
	}
	if err != nil || found != entries {
		t.Errorf("%s: accepted, and then %d of %d entries are read, %v", name, found, entries, err)
	}
	random := rand.New(rand.NewPCG(5, 6))
	if err := file.Update(func(tx *bbolt.Tx) error { return scribble(tx, random) }); err != nil {
		t.Errorf("%s: accepted, and then a write fails: %v", name, err)
	}
	if err := file.Close(); err != nil {
		t.Errorf("%s: close: %v", name, err)
	}
	again, err := boltfile.Open(path, boltfile.Options{Timeout: time.Second})
	if err != nil {
		t.Errorf("%s: accepted and written, and then refused: %v", name, err)
		return true
	}
	_ = again.Close()
	return true
}

// TestAWrongSeparator: when bbolt rewrites a page, it finds its entry in the page above by the first key of the old
// page. If another key is there, bbolt keeps both pages, and the next write damages the file. So such a file is
// refused, although its keys are in order.
func TestAWrongSeparator(t *testing.T) {
	path, _ := newFile(t)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const header, element = 16, 16
	changed := 0
	for start, page := 0, os.Getpagesize(); start < len(raw); start += page {
		if raw[start+8] != 1 || binary.NativeEndian.Uint64(raw[start:]) != uint64(start/page) {
			continue
		}
		at := start + header + element // the second entry
		position, length := binary.NativeEndian.Uint32(raw[at:]), binary.NativeEndian.Uint32(raw[at+4:])
		last := at + int(position) + int(length) - 1
		if last >= start+page {
			continue // a free page, with what it had
		}
		damaged := bytes.Clone(raw)
		damaged[last]-- // a little below the first key of its page
		name := filepath.Join(t.TempDir(), "damaged.db")
		if err := os.WriteFile(name, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := boltfile.Open(name, boltfile.Options{Timeout: time.Second})
		if err == nil {
			_ = file.Close()
			continue // a free page
		}
		if !strings.Contains(err.Error(), "its first key is not the one") {
			t.Errorf("page %d: %v", start/page, err)
		}
		changed++
	}
	if changed == 0 {
		t.Error("no wrong separator was refused")
	}
}

// TestCutWhileOpen cuts the file between two transactions, and during one.
func TestCutWhileOpen(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not cut a file that is mapped")
	}
	path, _ := newFile(t)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{0, 100, 4096, 8192, 16384} {
		for _, inside := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes, in a transaction %t", size, inside), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "cut.db")
				if err := os.WriteFile(path, raw, 0o600); err != nil {
					t.Fatal(err)
				}
				file := mustOpen(t, path)
				cut := func() {
					if err := os.Truncate(path, size); err != nil {
						t.Fatal(err)
					}
				}
				if !inside {
					cut()
				}
				wantDamage(t, file.View(func(tx *bbolt.Tx) error {
					if inside {
						cut()
					}
					_, err := readAll(tx)
					return err
				}))
				wantDamage(t, file.Err())
				<-file.Damaged()
				wantDamage(t, file.View(func(*bbolt.Tx) error { t.Error("it was read again"); return nil }))
				wantDamage(t, file.Update(func(*bbolt.Tx) error { t.Error("it was written again"); return nil }))
				if err := file.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestCutWhileWriting: bbolt does not unlock its own lock when a rollback faults. No later caller may wait for that
// lock.
func TestCutWhileWriting(t *testing.T) {
	path, _ := newFile(t)
	file := mustOpen(t, path)
	random := rand.New(rand.NewPCG(7, 8))
	wantDamage(t, file.Update(func(tx *bbolt.Tx) error {
		if err := os.Truncate(path, 0); err != nil {
			return err
		}
		return scribble(tx, random)
	}))
	wantDamage(t, file.Update(func(*bbolt.Tx) error { return nil }))
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}

func wantDamage(t *testing.T, err error) {
	t.Helper()
	if _, isDamaged := errors.AsType[*boltfile.DamagedError](err); !isDamaged {
		t.Errorf("got %v, want a DamagedError", err)
	}
}

// TestNoSyncNoMore: after an error of the disk its content is unknown, so the file is used no more, not even for
// reads.
func TestNoSyncNoMore(t *testing.T) {
	path, _ := newFile(t)
	file := mustOpen(t, path)
	wantDamage(t, file.Update(func(*bbolt.Tx) error { return fmt.Errorf("fdatasync: %w", syscall.EIO) }))
	err := file.View(func(*bbolt.Tx) error { return nil })
	wantDamage(t, err)
	if text := err.Error(); !strings.Contains(text, "start the server again") || strings.Contains(text, "Move it away") {
		t.Errorf("it says %s", text)
	}
}

// TestOtherErrorsAndPanicsPass: only errors and panics of the file itself count as damage.
func TestOtherErrorsAndPanicsPass(t *testing.T) {
	path, entries := newFile(t)
	file := mustOpen(t, path)
	full := fmt.Errorf("write: %w", syscall.ENOSPC)
	if err := file.Update(func(*bbolt.Tx) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	panicked := func() (reason any) {
		defer func() { reason = recover() }()
		_ = file.Update(func(*bbolt.Tx) error { panic("a mistake") })
		return nil
	}()
	if panicked != "a mistake" || file.Err() != nil {
		t.Errorf("a panic of the caller's became %v, %v", panicked, file.Err())
	}
	found := 0
	err := file.Update(func(tx *bbolt.Tx) (err error) { found, err = readAll(tx); return err })
	if err != nil || found != entries {
		t.Errorf("%d of %d entries, %v", found, entries, err)
	}
}

func TestOpen(t *testing.T) {
	path, _ := newFile(t)
	file := mustOpen(t, path)
	if file.Path() != path {
		t.Errorf("path %q", file.Path())
	}
	if _, err := boltfile.Open(path, boltfile.Options{Timeout: time.Millisecond}); !errors.Is(err, boltfile.ErrInUse) {
		t.Errorf("a second opening: %v", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.View(func(*bbolt.Tx) error { return nil }); err == nil {
		t.Error("a closed file can be read")
	}
	_, err := boltfile.Open(t.TempDir(), boltfile.Options{})
	if _, isDamaged := errors.AsType[*boltfile.DamagedError](err); err == nil || isDamaged {
		t.Errorf("a directory: %v", err)
	}
	limited, err := boltfile.Open(path, boltfile.Options{CheckTime: time.Nanosecond})
	if err != nil || limited.Checked() >= 1 {
		t.Errorf("a check of a nanosecond saw %v, %v", limited.Checked(), err)
	}
	_ = limited.Close()
}

func BenchmarkCheck(b *testing.B) {
	path := filepath.Join(b.TempDir(), "test.db")
	file := mustOpen(b, path)
	for part := range 100 {
		err := file.Update(func(tx *bbolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("b"))
			for i := range 5000 {
				key := fmt.Appendf(nil, "%08d", part*5000+i)
				err = errors.Join(err, bucket.Put(key, boltfile.Seal(key, make([]byte, 100))))
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	raw, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer raw.Close()
	info, _ := raw.Stat()
	b.SetBytes(info.Size())
	for b.Loop() {
		if checked, err := boltfile.Check(raw, 0); err != nil || checked != 1 {
			b.Fatal(checked, err)
		}
	}
}

// TestEmptiedPage: if the count of a leaf with one entry becomes 0, the entry is lost, and nothing else in the file
// is wrong.
func TestEmptiedPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	file := mustOpen(t, path)
	err := file.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("b"))
		return errors.Join(err, b.Put([]byte("k"), bytes.Repeat([]byte("v"), 3000)))
	})
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	start := bytes.Index(raw, bytes.Repeat([]byte("v"), 3000)) / page * page
	binary.NativeEndian.PutUint16(raw[start+10:], 0)
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = boltfile.Open(path, boltfile.Options{Timeout: time.Second})
	wantDamage(t, err)
}
