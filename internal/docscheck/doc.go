// Package docscheck runs the shell commands of the documentation, as a reader
// would: the blocks of a page one after another, in one shell, in an empty
// folder, with the built program in PATH, on servers of its own.
//
// A comment before a block of ```sh says what is special about it:
//
//	<!-- docs-check: serve -->            it runs until the page ends; go on when the service answers
//	<!-- docs-check: in the repository --> it runs in the module's root
//	<!-- docs-check: prints 412 -->       its output must contain that; several are separated by " and "
//	<!-- docs-check: lines 1-2 -->        only these lines of it are run
//	<!-- docs-check: not run: REASON -->  why it is not run here
//
// Several are separated by "; ", but a reason is always alone. A block without a comment must simply succeed.
//
//	make docs-check
package docscheck
