// Package boltfile opens the embedded bbolt file so that damage ends in an
// error, never in a panic or a signal.
//
// bbolt trusts its file. It maps the file into memory and follows the page
// numbers, offsets and lengths that it finds there: a page beyond the file's
// end is a SIGBUS, a wrong length is a SIGSEGV or a panic, a wrong page number
// may be an endless loop, and a damaged newest meta page silently brings back the
// state before the last transaction. Three measures prevent this:
//
//   - Open reads every page that is in use with ordinary reads, and refuses
//     the file unless it has the structure that bbolt writes (Check).
//   - View and Update compare the file's size with the size in use before each
//     transaction, and turn faults and panics of bbolt into an error.
//   - After the first such error, and after a failed sync, nothing touches the
//     file again: Damaged is closed, and every transaction fails.
//
// bbolt keeps no checksum of stored data. A caller that stores numbers that must never decrease seals them
// (Seal, Unseal). A transaction that returns ErrSeal counts as damage, too.
package boltfile
