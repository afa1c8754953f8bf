package pgstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// The statements of a transaction. Each is as short as can be, since none is prepared
// by name; the functions keep their plans.
const (
	beginWrite = `BEGIN ISOLATION LEVEL READ COMMITTED`
	beginRead  = `BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY`
	openSQL    = `SELECT * FROM fencelock._open($1, $2, $3, $4, $5, $6)`
	readSQL    = `SELECT * FROM fencelock._read($1, $2, $3, $4, $5)`
	writeSQL   = `SELECT fencelock._write($1, $2, $3, $4, $5, $6, $7)`
	commitSQL  = `COMMIT`

	rollbackSQL = `ROLLBACK`
)

// statement is one of a round trip. All values are in binary.
type statement struct {
	sql    string
	params [][]byte
	row    func(values [][]byte) error // nil for none; values are valid in the call only
}

var binaryFormat = []int16{pgtype.BinaryFormatCode} //nolint:gochecknoglobals // never changed

var errNotCommitted = errors.New("the transaction was undone instead of committed")

// roundTrip sends the statements at once and reads what they answer. After an error of
// one the server skips those behind it.
func roundTrip(ctx context.Context, conn *pgconn.PgConn, statements ...statement) error {
	p := conn.StartPipeline(ctx)
	for _, s := range statements {
		p.SendQueryParams(s.sql, s.params, nil, binaryFormat[:min(len(s.params), 1)], binaryFormat)
	}
	err := p.Sync()
	for i := 0; i < len(statements) && err == nil; i++ {
		err = receive(p, statements[i])
	}
	if closed := p.Close(); err == nil {
		err = closed
	}
	return err
}

func receive(p *pgconn.Pipeline, s statement) error {
	got, err := p.GetResults()
	if err != nil {
		return err
	}
	reader, ok := got.(*pgconn.ResultReader)
	if !ok {
		return fmt.Errorf("the server answers %T to a statement", got)
	}
	for reader.NextRow() {
		if s.row != nil && err == nil {
			err = s.row(reader.Values())
		}
	}
	tag, closed := reader.Close()
	switch {
	case closed != nil:
		return closed
	case s.sql == commitSQL && tag.String() != commitSQL:
		return errNotCommitted
	}
	return err
}

// reading is what a round trip asks for and learns.
type reading struct {
	keys   []string
	ranges []wantedRange
	sizes  []int

	read   *known // what it learns is added here
	found  [][]string
	now    int64
	status replica.Status
}

func newReading(read *known, w *want, round int) *reading {
	r := &reading{read: read, keys: w.sortedKeys(), ranges: w.distinctRanges()}
	for _, wanted := range r.ranges {
		r.sizes = append(r.sizes, size(wanted.limit, round))
	}
	r.found = make([][]string, len(r.ranges))
	return r
}

// open begins a transaction, and reads.
func (r *reading) open(writes bool, idle string) statement {
	return statement{sql: openSQL, params: append([][]byte{boolean(writes), []byte(idle)}, r.params()...), row: r.row}
}

// more reads on, in a transaction that was opened at now.
func (r *reading) more(now int64) statement {
	return statement{sql: readSQL, params: append([][]byte{int8s(now)}, r.params()...), row: r.row}
}

func (r *reading) params() [][]byte {
	var from, to, sizes array
	from.begin(pgtype.ByteaOID, len(r.ranges))
	to.begin(pgtype.ByteaOID, len(r.ranges))
	sizes.begin(pgtype.Int4OID, len(r.ranges))
	for i, wanted := range r.ranges {
		from.add([]byte(wanted.from))
		to.add([]byte(wanted.to))
		sizes.add(int4(int32(r.sizes[i])))
	}
	return [][]byte{texts(pgtype.ByteaOID, r.keys), from.raw, to.raw, sizes.raw}
}

var errMalformed = errors.New("the server's answer is not one of the schema fencelock of this version")

// row takes one row: of the status (-1), of the keys (0), or of a range (1…).
func (r *reading) row(values [][]byte) error {
	if len(values) != 4 || len(values[0]) != 4 || len(values[3]) != 8 {
		return errMalformed
	}
	number := int(int32(binary.BigEndian.Uint32(values[0])))
	ends := int64(binary.BigEndian.Uint64(values[3]))
	if number < 0 {
		r.status = replica.Status{Incarnation: string(values[1]), Unfit: string(values[2])}
		r.now = ends
		return nil
	}
	if number > len(r.ranges) {
		return errMalformed
	}
	key := string(values[1])
	r.read.rows[key] = stored{value: append([]byte{}, values[2]...), ends: ends}
	if number > 0 {
		r.found[number-1] = append(r.found[number-1], key)
	}
	return nil
}

// end notes what was not found.
func (r *reading) end() {
	for _, key := range r.keys {
		if _, there := r.read.rows[key]; !there {
			r.read.absent[key] = struct{}{}
		}
	}
	for i, wanted := range r.ranges {
		slices.Sort(r.found[i]) // the server promises no order
		s := span{from: wanted.from, upto: wanted.to, keys: r.found[i]}
		if n := len(s.keys); n == r.sizes[i] {
			s.upto = s.keys[n-1] + "\x00"
		}
		r.read.add(s)
	}
}

// write is the statement that leaves what the transaction changed; wakes are those that
// other processes have to be told of.
func (c *changes) write(t *tx, wakes []replica.Wake) statement {
	var values, ends array
	values.begin(pgtype.ByteaOID, len(c.keys))
	ends.begin(pgtype.Int8OID, len(c.keys))
	for _, key := range c.keys {
		values.add(t.writes[key].value)
		ends.add(int8s(t.writes[key].ends))
	}
	var channels, words []string
	for _, wake := range wakes {
		channels, words = append(channels, channelOf(wake.Ticket.Server)), append(words, encodeWake(wake))
	}
	return statement{sql: writeSQL, params: [][]byte{
		boolean(c.purge), texts(pgtype.ByteaOID, c.deleted), texts(pgtype.ByteaOID, c.keys), values.raw, ends.raw,
		texts(pgtype.TextOID, channels), texts(pgtype.TextOID, words),
	}}
}

// array is a parameter that is an array, as it is sent.
type array struct{ raw []byte }

func (a *array) begin(element uint32, n int) {
	if n == 0 { // an empty array has no dimension
		a.raw = binary.BigEndian.AppendUint32(make([]byte, 8, 12), element)
		return
	}
	a.raw = binary.BigEndian.AppendUint32(make([]byte, 0, 20+16*n), 1)
	a.raw = binary.BigEndian.AppendUint32(a.raw, 0) // no NULL
	a.raw = binary.BigEndian.AppendUint32(a.raw, element)
	a.raw = binary.BigEndian.AppendUint32(a.raw, uint32(n))
	a.raw = binary.BigEndian.AppendUint32(a.raw, 1) // the first index
}

func (a *array) add(value []byte) {
	a.raw = binary.BigEndian.AppendUint32(a.raw, uint32(len(value)))
	a.raw = append(a.raw, value...)
}

func texts(element uint32, list []string) []byte {
	var a array
	a.begin(element, len(list))
	for _, text := range list {
		a.add([]byte(text))
	}
	return a.raw
}

func boolean(b bool) []byte {
	if b {
		return []byte{1}
	}
	return []byte{0}
}

func int4(n int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

func int8s(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
