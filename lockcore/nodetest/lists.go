package nodetest

import (
	"slices"
	"strings"

	"github.com/fencelock/fencelock/lockcore/node"
)

// lists are the lists for "every". None of them is empty.
var lists = map[string]func() []string{
	"metadata": func() []string {
		return []string{
			" ", "  two blanks  ", "a\nb\r\n", "\x1f1\x1fholder\x1f{\"a\": 1}", "- = . ,", "zero \x00 byte", "\xff\xfe no UTF-8",
			`{"text":"ümläut 🔒","n":9007199254740991}`, string(make([]byte, 9000)),
		}
	},
	"forgeries": forgeries,
	"metadata-forgeries": func() []string {
		return made(func(f string) []string { return []string{f, f + "1 60000 L1  rest", " " + f + " L1 - . "} })
	},
	"keyed-metadata": func() []string {
		return made(func(f string) []string { return []string{"attempt1 " + f + " attempt1 "} })
	},
	"resources": func() []string {
		return made(func(f string) (resources []string) {
			for _, r := range []string{f, f + "a", "a" + f, "a\n" + f, "b" + f} {
				if r != "a" && r != "b" {
					resources = append(resources, r)
				}
			}
			return resources
		})
	},
	"not-words": func() []string {
		return made(func(f string) []string {
			if (&node.Op{Owner: f}).Validate() == nil {
				return nil
			}
			return []string{f}
		})
	},
}

// made makes texts of every forgery, each once.
func made(of func(forgery string) []string) (texts []string) {
	for _, f := range forgeries() {
		texts = append(texts, of(f)...)
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// A node stores the texts of one caller beside those of another. These texts imitate everything that a node's
// records, lists, keys and messages consist of: for an owner L1 with attempts, and a ticket t1 of a server s1.
func forgeries() []string {
	return []string{
		"L1", " L1 ", " L1  ", " L1 - ", " L1 - . ", "1 60000 L1  ", "9007199254740991 60000 L1 = ", " attempt1 ", ",attempt1,", "=", "-", ".", " - . ",
		"l:a", "c:a", "i:K1", "iK1", "K1", "i:holds:a", "holds:a", "q:a", "s:s1", "fencelock", "a\n", "\na", "\n", "1 a", "1 a t1 s1 ",
		"t1", "t1 s1 ", " t1 s1 first", "s1", " s1 ", "\x1f", "1\x1fL1\x1f", "G 1 60000 ", "H 1 60000 60000 0 L1 ", "N", "! ", "\r\n",
		"%d+", "^(%d+)", "\x00", "\xff", "\xda\xff\xff", "\xdd\xff\xff\xff\xff", strings.Repeat(" L1 ", 40),
	}
}
