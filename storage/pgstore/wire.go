package pgstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

// The statements of a transaction. Each is short, since behind a pooler none can be prepared by name; the
// functions keep their plans.
const (
	beginWrite = `BEGIN ISOLATION LEVEL READ COMMITTED`
	beginRead  = `BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY`
	openSQL    = `SELECT * FROM fencelock._open($1, $2, $3, $4, $5, $6)`
	readSQL    = `SELECT * FROM fencelock._read($1, $2, $3, $4, $5)`
	writeSQL   = `SELECT fencelock._write($1, $2, $3, $4, $5, $6, $7, $8)`
	writeIfSQL = `SELECT fencelock._write_if($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`
	commitSQL  = `COMMIT`

	rollbackSQL = `ROLLBACK`
)

// statement is one statement of a round trip. All values are in binary.
type statement struct {
	sql    string
	params [][]byte
	row    func(values [][]byte) error // may be nil; values are valid only during the call
}

var binaryFormat = []int16{pgtype.BinaryFormatCode} //nolint:gochecknoglobals // never changed

var errNotCommitted = errors.New("the transaction was undone instead of committed")

// prepared lists the statements that a connection has prepared. It is nil behind a pooler, where each
// transaction may get another connection.
type prepared map[string]string // names by SQL

const preparedKey = "fencelock.prepared"

// prepareOn lets a connection prepare statements if it leads to the server itself.
func prepareOn(ctx context.Context, conn *pgx.Conn) error {
	behindPooler, err := pooled(ctx, conn)
	if err == nil && !behindPooler {
		conn.PgConn().CustomData()[preparedKey] = prepared{}
	}
	return err
}

// roundTrip sends the statements together and reads their results. After an error the server skips the
// remaining statements, and the connection cannot be used any more.
func roundTrip(ctx context.Context, conn *pgconn.PgConn, statements ...statement) error {
	names, _ := conn.CustomData()[preparedKey].(prepared)
	p := conn.StartPipeline(ctx)
	first := make([]bool, len(statements))
	for i, s := range statements {
		first[i] = names.send(p, s)
	}
	err := p.Sync()
	for i := 0; i < len(statements) && err == nil; i++ {
		if first[i] {
			_, err = p.GetResults()
		}
		if err == nil {
			err = receive(p, statements[i])
		}
	}
	if closed := p.Close(); err == nil {
		err = closed
	}
	return err
}

// send sends a statement; first reports whether it is prepared first.
func (names prepared) send(p *pgconn.Pipeline, s statement) (first bool) {
	formats := binaryFormat[:min(len(s.params), 1)]
	if names == nil {
		p.SendQueryParams(s.sql, s.params, nil, formats, binaryFormat)
		return false
	}
	name, there := names[s.sql]
	if !there {
		name = "fencelock" + strconv.Itoa(len(names))
		names[s.sql] = name
		p.SendPrepare(name, s.sql, nil)
	}
	p.SendQueryPrepared(name, s.params, formats, binaryFormat)
	return !there
}

func receive(p *pgconn.Pipeline, s statement) error {
	got, err := p.GetResults()
	if err != nil {
		return err
	}
	reader, ok := got.(*pgconn.ResultReader)
	if !ok {
		return fmt.Errorf("the server responded to a statement with %T", got)
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

// reading has the request of a round trip and its results.
type reading struct {
	keys   []string
	ranges []overlay.Range
	sizes  []int

	read   *known // receives the results
	found  [][]string
	now    int64
	status replica.Status
	writes int64 // number of transactions that had written
}

func newReading(read *known, w *overlay.Missing, round int) *reading {
	r := &reading{read: read, keys: sortedKeys(w), ranges: distinctRanges(w)}
	for _, wanted := range r.ranges {
		r.sizes = append(r.sizes, size(wanted.Limit, round))
	}
	r.found = make([][]string, len(r.ranges))
	return r
}

// open begins a transaction, and reads.
func (r *reading) open(writes bool, idle string) statement {
	return statement{sql: openSQL, params: append([][]byte{boolean(writes), []byte(idle)}, r.params()...), row: r.row}
}

// more continues reading, in a transaction that was opened at now.
func (r *reading) more(now int64) statement {
	return statement{sql: readSQL, params: append([][]byte{int8s(now)}, r.params()...), row: r.row}
}

func (r *reading) params() [][]byte {
	var from, to, sizes array
	from.begin(pgtype.ByteaOID, len(r.ranges))
	to.begin(pgtype.ByteaOID, len(r.ranges))
	sizes.begin(pgtype.Int4OID, len(r.ranges))
	for i, wanted := range r.ranges {
		from.add([]byte(wanted.From))
		to.add([]byte(wanted.To))
		sizes.add(int4(int32(r.sizes[i])))
	}
	return [][]byte{texts(pgtype.ByteaOID, r.keys), from.raw, to.raw, sizes.raw}
}

var errMalformed = errors.New("the server's response does not fit the schema fencelock of this version")

// row takes one row: the number of writing transactions (-2), the status (-1), a row of the keys (0), or a row
// of a range (1…).
func (r *reading) row(values [][]byte) error {
	if len(values) != 4 || len(values[0]) != 4 || len(values[3]) != 8 { // NULL has no length
		return errMalformed
	}
	number := int(int32(binary.BigEndian.Uint32(values[0])))
	ends := int64(binary.BigEndian.Uint64(values[3]))
	if number == -2 {
		r.writes = ends
		return nil
	}
	if number < 0 {
		r.status = replica.Status{Incarnation: string(values[1]), Unfit: string(values[2])}
		r.now = ends
		return nil
	}
	if number > len(r.ranges) {
		return errMalformed
	}
	key := string(values[1])
	r.read.rows[key] = overlay.Row{Value: append([]byte{}, values[2]...), Ends: ends}
	if number > 0 {
		r.found[number-1] = append(r.found[number-1], key)
	}
	return nil
}

// end records the keys that were not found.
func (r *reading) end() {
	for _, key := range r.keys {
		if _, there := r.read.rows[key]; !there {
			r.read.absent[key] = struct{}{}
		}
	}
	for i, wanted := range r.ranges {
		slices.Sort(r.found[i]) // the server promises no order
		s := span{from: wanted.From, upto: wanted.To, keys: r.found[i]}
		if n := len(s.keys); n == r.sizes[i] {
			s.upto = s.keys[n-1] + "\x00"
		}
		r.read.add(s)
	}
}

// write returns the statement with the transaction's changes; wakes are the notifications for other processes.
func write(c *overlay.Changes, now time.Time, wakes []replica.Wake) statement {
	return statement{sql: writeSQL, params: append([][]byte{int8s(now.UnixMicro())}, written(c, wakes)...)}
}

// writeIf is write for a draft, as a separate transaction.
func writeIf(d *draft, wakes []replica.Wake, row func([][]byte) error) statement {
	taken := d.guess.taken()
	var from, upto, living array
	from.begin(pgtype.ByteaOID, len(taken))
	upto.begin(pgtype.ByteaOID, len(taken))
	living.begin(pgtype.Int4OID, len(taken))
	for _, w := range taken {
		from.add([]byte(w.from))
		upto.add([]byte(w.upto))
		living.add(int4(int32(w.living)))
	}
	made := [][]byte{
		[]byte(d.status.Incarnation), []byte(d.status.Unfit), int8s(d.writes), int8s(d.now), from.raw, upto.raw, living.raw,
	}
	return statement{sql: writeIfSQL, params: append(made, written(&d.changed, wakes)...), row: row}
}

func written(c *overlay.Changes, wakes []replica.Wake) [][]byte {
	var values, ends array
	values.begin(pgtype.ByteaOID, len(c.Put))
	ends.begin(pgtype.Int8OID, len(c.Put))
	keys := make([]string, len(c.Put))
	for i, put := range c.Put {
		keys[i] = put.Key
		values.add(put.Row.Value)
		if put.Row.Fresh {
			ends.add(int8s(-put.TTL))
		} else {
			ends.add(int8s(put.Row.Ends))
		}
	}
	var channels, words []string
	for _, wake := range wakes {
		channels, words = append(channels, channelOf(wake.Ticket.Server)), append(words, encodeWake(wake))
	}
	return [][]byte{
		boolean(c.Purge), texts(pgtype.ByteaOID, c.Deleted), texts(pgtype.ByteaOID, keys), values.raw, ends.raw,
		texts(pgtype.TextOID, channels), texts(pgtype.TextOID, words),
	}
}

// array is an encoded array parameter.
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
