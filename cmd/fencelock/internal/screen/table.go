package screen

import (
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
)

// gap is the space between two columns; leastColumn is the minimum width of a narrowed column.
const (
	gap         = 2
	leastColumn = 8
)

// The size of a terminal that does not report it.
const (
	usualWidth  = 80
	usualHeight = 24
)

// widths counts the cells that a text takes on a terminal: two for the wide characters of East Asia.
// Characters of ambiguous width count as one, the default of terminals; otherwise the library would read
// the environment.
func widths() *runewidth.Condition { return &runewidth.Condition{StrictEmojiNeutral: true} }

// Width returns how many terminal cells a visible text takes.
func Width(text string) int { return widths().StringWidth(text) }

// Cut shortens a visible text to a width, and marks the cut with ….
func Cut(text string, width int) string { return widths().Truncate(text, max(width, 0), "…") }

// Table is a list of rows of cells. The first row is the header.
type Table struct{ rows [][]string }

// Row adds a row. It makes the cells visible (see Visible).
func (t *Table) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = Visible(cell)
	}
	t.rows = append(t.rows, row)
}

// Write writes the table in its full width.
func (t *Table) Write(w io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	_, err := io.WriteString(w, strings.Join(t.Lines(0), "\n")+"\n")
	return err
}

// Lines returns the lines of the table. If width is not 0, no line is wider: the widest columns are
// narrowed first, and the rest is cut.
func (t *Table) Lines(width int) []string {
	columns := t.columns()
	if width > 0 {
		narrow(columns, width)
	}
	lines := make([]string, 0, len(t.rows))
	for _, row := range t.rows {
		line := rowLine(row, columns)
		if width > 0 {
			line = Cut(line, width)
		}
		lines = append(lines, line)
	}
	return lines
}

// columns returns the widths of the columns.
func (t *Table) columns() []int {
	var columns []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(columns) {
				columns = append(columns, 0)
			}
			columns[i] = max(columns[i], Width(cell))
		}
	}
	return columns
}

// narrow narrows the widest column again and again, until all columns fit or none can be narrowed
// further.
func narrow(columns []int, width int) {
	total := gap * (len(columns) - 1)
	for _, c := range columns {
		total += c
	}
	for ; total > width; total-- {
		widest := slices.Index(columns, slices.Max(columns))
		if columns[widest] <= leastColumn {
			return
		}
		columns[widest]--
	}
}

func rowLine(row []string, columns []int) string {
	var b strings.Builder
	for i, cell := range row {
		cell = Cut(cell, columns[i])
		b.WriteString(cell)
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", columns[i]-Width(cell)+gap))
		}
	}
	return strings.TrimRight(b.String(), " ")
}
