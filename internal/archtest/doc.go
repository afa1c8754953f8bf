// Package archtest keeps the import rules: which package may know which. Its
// tests read the imports of every file in the module, under all build tags, and
// fail on an edge that the rules do not allow.
//
// A package that no rule covers also fails. To add a package, write into rules_test.go what it may import,
// and why.
package archtest
