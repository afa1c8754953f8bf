package docscheck

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Block is one fenced block of a page.
type Block struct {
	Line    int    // the line of its opening fence
	Lang    string // sh, sql, go, …
	Text    string
	Serve   bool
	Root    bool // run in the module's root
	Fails   bool
	Prints  []string
	Given   string // parameters of a Go block's function
	Skipped string // why it is not run or compiled

	ordered bool // a comment before the block says how to run it
}

// Runs reports whether the block contains commands to run.
func (b *Block) Runs() bool { return b.Lang == "sh" || b.Lang == "sql" && b.ordered }

var directive = regexp.MustCompile(`^<!-- docs-check: (.*) -->$`)

// checked are the languages whose blocks are run or compiled.
var checked = []string{"sh", "sql", "go", "python", "js"}

// Blocks reads the blocks of a page that are run or compiled.
func Blocks(page string) (blocks []Block, err error) {
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		lang, ok := strings.CutPrefix(strings.TrimSpace(lines[i]), "```")
		if !ok {
			continue
		}
		end := i + 1
		for end < len(lines) && strings.TrimSpace(lines[end]) != "```" {
			end++
		}
		if end == len(lines) {
			return nil, fmt.Errorf("line %d: the block does not end", i+1)
		}
		if slices.Contains(checked, lang) {
			b, err := block(lang, i, lines[max(0, i-1)], lines[i+1:end])
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			blocks = append(blocks, b)
		}
		i = end
	}
	return blocks, nil
}

func block(lang string, at int, before string, lines []string) (Block, error) {
	b := Block{Line: at + 1, Lang: lang}
	if said := directive.FindStringSubmatch(strings.TrimSpace(before)); said != nil {
		b.ordered = true
		orders := strings.Split(said[1], "; ")
		if strings.HasPrefix(said[1], "not run: ") || strings.HasPrefix(said[1], "given ") {
			orders = said[1:]
		}
		for _, order := range orders {
			var err error
			if lines, err = b.obey(order, lines); err != nil {
				return b, err
			}
		}
	}
	b.Text = strings.Join(lines, "\n") + "\n"
	return b, nil
}

// obey applies one instruction of the comment to the block, and returns the lines that remain to be run.
func (b *Block) obey(order string, lines []string) ([]string, error) {
	word, rest, _ := strings.Cut(order, " ")
	switch {
	case order == "in the repository":
		b.Root = true
	case order == "serve":
		b.Serve = true
	case order == "fails":
		b.Fails = true
	case order == "run" && b.Lang == "sql":
	case word == "given" && rest != "" && b.Lang == "go":
		b.Given = rest
	case strings.HasPrefix(order, "not run: "):
		b.Skipped = strings.TrimPrefix(order, "not run: ")
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
