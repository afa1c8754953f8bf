# The tests are `go test work`, see README.md; this is what a change needs beside them. `make` alone lists it.

GO    ?= go
# How long each random run of make soak and make explore takes, and of make chaos.
FOR   ?= 10m
SEED  ?= $(shell date +%s)
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# The tests of these packages drive programs, in which the race detector is not; those of the others compute so
# much that some leave themselves out under it (testenv.Computes).
DRIVERS  := ./cmd/fencelock ./chaos ./clients/... ./examples ./internal/apicheck ./internal/docscheck
COMPUTES := ./internal/sim ./lockcore/sets ./lockcore/replica ./storage/optimistic
RACED     = $(shell $(GO) list ./storage/... work | grep -vxF "$$($(GO) list $(DRIVERS))")
LINTER := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The modules of go.work, and those apart, with dependencies that the others do not have.
MODULES := . api/wire client fencing fencing/fencinggrpc migrations storage/mysqlguard storage/pgguard
APART   := bench chaos/peers client/gocronlock release
# Half of the time tests wait for servers, so twice as many packages run as there are cores.
TEST = $(GO) test -vet=off -count=1 -p 4 -parallel 4 -timeout 30m

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z -]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z -]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Go itself puts no commit into what it builds in a Git worktree, or with GOFLAGS=-buildvcs=false.
STAMPED = github.com/fencelock/fencelock/cmd/fencelock/internal/version
STAMP   = -X $(STAMPED).releaseCommit=$(shell git rev-parse HEAD) -X $(STAMPED).releaseDate=$(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)

build: ## build bin/fencelock
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags "-s -w $(STAMP)" -o bin/fencelock ./cmd/fencelock

run: ## run the service on its embedded default, http://127.0.0.1:8080
	$(GO) run ./cmd/fencelock serve

check: fmt-check vet ## while you work: what needs no server, in a minute
	$(GO) test -short -vet=off work

verify: fmt-check vet mod-check ## everything that a merge needs beside the tests' first tier, in a quarter of an hour
	@$(MAKE) --no-print-directory -j3 -Otarget lint verify-drivers verify-computes
	@TESTENV_TIER=verify $(MAKE) --no-print-directory verify-raced
	@internal/testenv/versions.sh

verify-raced: # without TESTENV_TIER, as in continuous integration, the tests of the first tier alone
	$(TEST) -race $(RACED)
	cd client/gocronlock && $(TEST) -race ./...

verify-drivers:
	TESTENV_TIER=verify $(TEST) $(DRIVERS)

verify-computes: # for hours of virtual time: it gives way to what waits for a clock
	TESTENV_TIER=verify $(TEST) -exec 'nice -n 5' $(COMPUTES)

soak: ## for hours: every fault, what things cost, random runs for FOR (10m) each; a quiet machine, before a release
	TESTENV_TIER=soak $(GO) test -vet=off -count=1 -p 1 -timeout 0 work
	$(GO) test -count=1 -run '^$$' -bench . -benchtime 1x ./api/... ./client ./lockcore/... ./storage/...
	$(MAKE) --no-print-directory faults-go faults-python faults-typescript faults-java chaos explore kill-rounds

explore: ## random tests with new SEEDs for FOR (10m) each; prints the seed of what fails
	RAPID_SEED=$(SEED) RAPID_CHECKS=1000 TESTENV_TIER=verify $(GO) test ./storage/... -run '^TestDifferential$$' -count=1 -timeout 0
	$(MAKE) --no-print-directory sim

sim: ## simulate the protocol for FOR (10m); prints the seed of what fails, made small
	$(GO) test ./internal/sim -run '^TestSimulation$$' -v -count=1 -timeout 0 -sim.start=0 -sim.seeds=0 -sim.workers=$(CORES) -sim.budget=$(FOR)

chaos: ## real processes under real faults for FOR (10m); CHAOS="-seed N -only NAME -engine etcd -clients N -out FOLDER"
	$(GO) test ./chaos -count=1 -run '^TestChaos$$' -v -timeout 0 -args -for $(FOR) $(CHAOS)

faults-go faults-python faults-typescript faults-java: ## a client for FOR (10m) against servers that are killed and frozen: no deposit lost, no late work, no leak
	TESTENV_TIER=soak $(GO) test ./$(if $(@:faults-go=),clients/$(@:faults-%=%),internal/clienttest) -count=1 -v -run '^TestSoakFaults$$' -timeout 0 -args -for $(FOR)

kill-rounds: ## is a command dead before the next grant? ROUNDS (100) with the service frozen, and with the network cut
	$(GO) test ./cmd/fencelock -count=1 -run '^TestCommandIsDeadBeforeTheNextGrant$$' -v -timeout 0 -args -rounds $(or $(ROUNDS),100) -round-ttl 1500ms

fuzz: ## every fuzz target for FUZZTIME (30s)
	@grep -rlE --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do \
		sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file" | while read -r target; do \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(or $(FUZZTIME),30s) "$$(dirname "$$file")" </dev/null || exit 1; \
		done || exit 1; \
	done

bench: ## compare with other locks, 15 minutes; BENCH=-quick for under two, BENCH=-h for more
	cd bench && $(GO) run . $(BENCH)

bench-guard: ## what the guard costs in Postgres beside pgbench (RUNS=5, SECONDS_EACH=3), and in MariaDB
	storage/pgguard/bench/run.sh
	TMPDIR=$${TMPDIR:-/tmp} $(GO) test ./internal/mysqlguardtest -run '^$$' -bench Guard -benchtime 9x

scale: ## 100,000 leases and 10,000 waiters in Postgres, etcd and ZooKeeper; what idle servers cost on five Redis
	TESTENV_TIER=soak $(GO) test -count=1 -timeout 30m -p 1 -v -run '^TestSoak(ManyLeases|Idle)$$' ./storage/... ./cmd/fencelock

faults: ## every fault of every engine: what clients get, what an operator sees, and when it is over; writes docs/reference/faults.md
	TESTENV_TIER=soak $(GO) test ./cmd/fencelock -count=1 -v -run '^TestSoak(FaultTable|Outages)$$' -timeout 40m -faults $(CURDIR)/docs/reference/faults.md

mutants: ## switch off every rule in turn, up to MUTANTLIMIT (2m) each, and write internal/sim/README.md
	$(GO) test ./internal/sim -run TestMutantTable -v -count=1 -timeout 0 -sim.mutants=$(CURDIR)/internal/sim/README.md -sim.limit=$(or $(MUTANTLIMIT),2m)

model: ## check the protocol's model with spin, and print the table of its RESULTS.txt
	docs/internals/model/run.sh

conformance: ## what each client does in each scenario of the conformance kit, and whether that is right
	TESTENV_TIER=verify $(GO) test ./clients/conformance -count=1 -v -run '^TestConformance$$' -timeout 10m

matrix: ## run the suites of stores and guards against other versions of their servers; MATRIX_ONLY=postgresql for one kind
	internal/matrix/run.sh

docs-check: ## run the commands and compile the snippets of README.md and docs/, open the site in a browser, and say what is not run and why
	TESTENV_TIER=verify $(GO) test ./internal/docscheck -v -count=1

site: ## build the documentation's site into dist/site, with Hugo (apt-get install hugo); SITE_VERSION names the version
	site/build.sh

pictures: ## take the pictures in docs/images again, from the tests of the console
	TESTENV_TIER=verify FENCELOCK_TEST_PICTURES=$(CURDIR)/docs/images $(GO) test ./cmd/fencelock -run '^TestConsole(Pictures|Race)$$' -count=1

recording: ## record the race of the documentation's site again, from a run of fencelock demo
	FENCELOCK_TEST_RECORDING=$(CURDIR)/site/data/race.json $(GO) test ./cmd/fencelock -run '^TestDemoEmbedded$$' -count=1

release: ## archives, deb, rpm, SBOMs, checksums and an image of the commit that is checked out, into dist/
	release/build.sh

release-check: ## build a release twice, byte by byte the same; install, upgrade and remove its packages in clean roots; run its image
	release/check.sh

install-check: ## install the command and the libraries as from a published release: Go modules from tags, wheel, sdist, npm tarball
	release/install.sh

chart-check: ## render the Helm chart, lint it, and compare its pod with the manifests'
	cd release && export GOWORK=off && $(GO) vet ./... && $(GO) test -count=1 ./...

compose-check: ## run docker-compose.yml for real: starts, README's calls, lost Redis, Postgres and etcd, monitoring
	deploy/compose/check.sh

fmt fmt-check: ## format the code; fail if some is not formatted
	@files=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$files" ] || { gofmt -d $$files | head -50; $(if $(filter fmt,$@),gofmt -w $$files,exit 1); }

vet: ## go vet
	$(GO) vet work

lint: ## golangci-lint of every module; it is built at a fixed version, in two minutes of a core, unless it is installed
	@for module in $(MODULES) $(APART); do \
		(cd $$module && if [ $$module = release ]; then export GOWORK=off; fi && nice -n 10 $(or $(shell command -v golangci-lint),$(GO) run $(LINTER)) run ./...) || exit 1; \
	done

mod-check: ## fail if go.mod or go.sum are not what the code needs, or a module was changed
	$(GO) mod verify
	release/tidy.sh -diff
