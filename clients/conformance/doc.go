// Package conformance runs clients of the HTTP API, in any language, against a
// scripted lock service, and judges what they do.
//
// The service (service.go) grants, extends and releases like the real one, and breaks some calls on
// purpose, as the scenario says. The scenarios are the table in scenarios.go. A client is run by a
// driver: a program that reads orders from its standard input and writes their results to its standard
// output, see README.md. Drivers know nothing of scenarios, so a new scenario needs no change in any
// language.
package conformance
