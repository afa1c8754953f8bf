package screen

import (
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"
)

// gap stands between two columns; leastColumn is what a narrowed one keeps.
const (
	gap         = 2
	leastColumn = 8
)

// What a terminal has that does not say.
const (
	usualWidth  = 80
	usualHeight = 24
)

// widths count the cells of a terminal that a text takes: two for the wide characters of
// East Asia. Those of ambiguous width take one, as terminals have it by default; the
// library would ask the environment.
func widths() *runewidth.Condition { return &runewidth.Condition{StrictEmojiNeutral: true} }

// Width is how many cells of a terminal a visible text takes.
func Width(text string) int { return widths().StringWidth(text) }

// Cut shortens a visible text to a width, and shows with … that it did.
func Cut(text string, width int) string { return widths().Truncate(text, max(width, 0), "…") }

// Table is rows of cells, the first of them the header's.
type Table struct{ rows [][]string }

// Row adds a row. What it holds is made visible.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = Visible(cell)
	}
	t.rows = append(t.rows, row)
}

// Write writes the table, as wide as it needs.
func (t *Table) Write(w io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	_, err := io.WriteString(w, strings.Join(t.Lines(0), "\n")+"\n")
	return err
}

// Lines are the lines of the table, none wider than width cells if that is not 0: the
// widest columns are narrowed first, and what does not fit then is cut.
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

// columns are the widths of the columns.
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

// narrow takes from the widest column until all fit, or none has anything to give.
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
