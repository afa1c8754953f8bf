package rowlog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/fencelock/fencelock/storage/overlay"
)

// The rows of a log are what its transactions left, however often old entries were removed, also for a server that
// reads only the entries that remain. The log stays as short as it should.
func TestTheLogLeavesWhatItsTransactionsLeft(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 7))
	log, want := New(), make(map[string]string)
	var written []struct {
		e       Entry
		deleted []string
		put     []Row
	}
	longest := 0
	for number := int64(1); number <= 3000; number++ {
		var deleted []string
		var put []Row
		for range random.IntN(20) {
			key := fmt.Sprint(random.IntN(400))
			if delete(want, key); random.IntN(3) == 0 {
				deleted = append(deleted, key)
				continue
			}
			value := fmt.Sprintf("%0*d", random.IntN(1000)+1, number)
			want[key] = value
			put = append(put, Row{Key: key, Row: overlay.Row{Value: []byte(value), Ends: overlay.ForGood}})
		}
		deleted, put = lastOf(deleted, put, want)
		removed, carried := log.Carry(CarryBytes, func(row Row) bool {
			_, stays := want[row.Key]
			return stays && want[row.Key] == string(row.Value)
		})
		put = append(put, carried...)
		e := Entry{Number: number, ID: fmt.Sprint("id", number)}
		log.Append(e, deleted, put)
		written = append(written, struct {
			e       Entry
			deleted []string
			put     []Row
		}{e, deleted, put})
		if len(removed) > 0 {
			log.Drop(removed[len(removed)-1].Number + 1)
		}
		longest = max(longest, log.Bytes()-2*log.live)
	}
	later := New()
	for _, w := range written[log.Entries[0].Number-1:] {
		later.Append(w.e, w.deleted, w.put)
	}
	for name, l := range map[string]*Log{"that was there all along": log, "that read what there still is": later} {
		got := make(map[string]string)
		for key := l.Next(""); key != ""; key = l.Next(key + "\x00") {
			row, _ := l.Get(key)
			got[key] = string(row.Value)
		}
		if !maps.Equal(got, want) {
			t.Errorf("a server %s has %d rows, want %d", name, len(got), len(want))
		}
		if l.Misses(Entry{Number: 3000, ID: "id3000"}, l.Entries[0].Number) || !l.Misses(Entry{Number: 3000, ID: "another"}, l.Entries[0].Number) ||
			!l.Misses(Entry{Number: 3001}, l.Entries[0].Number) || l.Misses(Entry{Number: 1}, l.Entries[0].Number) {
			t.Errorf("a server %s does not know what it has seen", name)
		}
	}
	if longest > spareBytes+2*CarryBytes {
		t.Errorf("the log was %d bytes longer than twice its rows", longest)
	}
	if len(log.Entries) > 1000 {
		t.Errorf("%d entries", len(log.Entries))
	}
}

// lastOf returns the last write of a transaction to each key: a put or a deletion.
func lastOf(deleted []string, put []Row, want map[string]string) (gone []string, last []Row) {
	seen := make(map[string]bool)
	for _, row := range put {
		if value, stays := want[row.Key]; stays && value == string(row.Value) && !seen[row.Key] {
			seen[row.Key] = true
			last = append(last, row)
		}
	}
	for _, key := range deleted {
		if _, stays := want[key]; !stays && !seen[key] {
			seen[key] = true
			gone = append(gone, key)
		}
	}
	return gone, last
}
