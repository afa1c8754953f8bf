// Package docscheck keeps the documentation true.
//
// It runs the shell commands of README.md, examples/README.md and every page
// below docs/ and site/content/, as a reader would: the blocks of a page one after another, in one
// shell, in an empty folder, with the built program in PATH, on servers of its own.
// It compiles the Go, Python and JavaScript blocks, and runs the examples of the site's
// API page. It checks that relative links
// and their anchors exist, that a line holds one sentence, and that the pages
// are short. make docs-check, and make verify, also build the site (site/build.sh), and open each
// page in a browser.
//
// A comment before a block says what is special about it:
//
//	<!-- docs-check: serve -->            it runs until the page ends; continue when the service answers
//	<!-- docs-check: in the repository --> it runs in the module's root
//	<!-- docs-check: prints 412 -->       its output must contain that; several are separated by " and "
//	<!-- docs-check: fails -->            it must end with an error
//	<!-- docs-check: lines 1-2 -->        only these lines of it are run
//	<!-- docs-check: run -->              a block of ```sql is run by psql, on the pages' database
//	<!-- docs-check: given ctx context.Context --> parameters of the function that a Go block is compiled as
//	<!-- docs-check: not run: REASON -->  why it is not run, or not compiled
//
// Several are separated by "; ", but a reason and "given" are always alone. A
// ```sh block without a comment must simply succeed. A ```sql block is run only
// if its comment says run, prints or fails.
//
//	make docs-check
package docscheck
