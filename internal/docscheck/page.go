package docscheck

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Block is one ```sh block of a page.
type Block struct {
	Line    int // of its fence
	Text    string
	Serve   bool
	Root    bool // run in the module's root
	Prints  []string
	Skipped string // why it is not run
}

var directive = regexp.MustCompile(`^<!-- docs-check: (.*) -->$`)

// Blocks reads a page's blocks.
func Blocks(page string) (blocks []Block, err error) {
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		if !strings.HasPrefix(strings.TrimSpace(lines[i]), "```") {
			continue
		}
		end := i + 1
		for end < len(lines) && strings.TrimSpace(lines[end]) != "```" {
			end++
		}
		if end == len(lines) {
			return nil, fmt.Errorf("line %d: the block does not end", i+1)
		}
		if strings.TrimSpace(lines[i]) == "```sh" {
			b, err := block(i, lines[max(0, i-1)], lines[i+1:end])
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			blocks = append(blocks, b)
		}
		i = end
	}
	return blocks, nil
}

func block(at int, before string, lines []string) (Block, error) {
	b := Block{Line: at + 1}
	if said := directive.FindStringSubmatch(strings.TrimSpace(before)); said != nil {
		if reason, ok := strings.CutPrefix(said[1], "not run: "); ok {
			b.Skipped, said[1] = reason, ""
		}
		for order := range strings.SplitSeq(said[1], "; ") {
			var err error
			if lines, err = b.obey(order, lines); err != nil {
				return b, err
			}
		}
	}
	b.Text = strings.Join(lines, "\n") + "\n"
	return b, nil
}

// obey takes one order, and returns the lines that are left.
func (b *Block) obey(order string, lines []string) ([]string, error) {
	word, rest, _ := strings.Cut(order, " ")
	switch {
	case order == "in the repository":
		b.Root = true
	case order == "serve":
		b.Serve = true
	case order == "":
	case word == "prints" && rest != "":
		b.Prints = strings.Split(rest, " and ")
	case word == "lines":
		return some(lines, rest)
	default:
		return nil, fmt.Errorf("docs-check does not know %q", order)
	}
	return lines, nil
}

// some returns the lines of a range like "1" or "2-3".
func some(lines []string, span string) ([]string, error) {
	from, to, ranged := strings.Cut(span, "-")
	if !ranged {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || first < 1 || last < first || last > len(lines) {
		return nil, fmt.Errorf("docs-check: there are no lines %q of %d", span, len(lines))
	}
	return lines[first-1 : last], nil
}
