// Package conformance runs clients of the HTTP API, in any language, against a
// scripted lock service, and judges what they do.
//
// The service (service.go) grants, extends and releases like the real one, and
// breaks a scenario's calls on purpose. The scenarios are the table in
// scenarios.go. A client is run by a driver: a program that reads orders from its
// standard input and writes what came of them, see README.md. Drivers know no
// scenario, so a new scenario needs no change in any language.
package conformance
