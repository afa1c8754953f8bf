# `make` alone lists the targets. Nothing needs to be installed first but Go (and
# gcc for -race): tests bring their own servers, see internal/testenv.

GO       ?= go

# The modules of one release: what applications import has few dependencies. The
# pattern has the packages of all; golangci-lint and go mod need their folders.
MODULES  := . api/wire client fencing migrations storage/mysqlguard storage/pgguard
# Modules apart, with dependencies that the others do not have.
APART    := bench chaos/peers client/gocronlock release
PKG      ?= github.com/fencelock/fencelock/...

COUNT    ?= 5
FUZZTIME ?= 30s
SIMTIME  ?= 0

# Packages whose tests run at the same time: two for each core, since half of the time they wait; four at most,
# since each may have half a dozen real servers up.
CORES    := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PARALLEL ?= $(shell if [ $(CORES) -lt 2 ]; then echo 2; else echo 4; fi)

# Results are not taken from the cache: Go does not see when a server changes. make check is what vets.
# Tests that call t.Parallel mostly wait, so there may be more of them than cores.
FLAGS    := -race -vet=off -count=1 -p $(PARALLEL) -parallel 4 -timeout 20m

# $(call tests,FLAGS,PACKAGES) runs tests: a line a package, then what failed with its output, and what was
# skipped and why. They use one program, which is built once, without -race.
tests = TESTENV_PROGRAM=$(CURDIR)/bin/test/fencelock $(CURDIR)/bin/test/gotestsum --format $(or $(FORMAT),pkgname) --format-hide-empty-pkg \
	--jsonfile-timing-events $$(mktemp $(CURDIR)/bin/test/times.XXXXXX) --packages '$(2)' -- $(1)

# $(slowest) ends a run of tests with the ten that took longest.
slowest = @echo '== the slowest:'; cat bin/test/times.* | bin/test/gotestsum tool slowest --num 10 --threshold 1s

# What is too long for every day is in tests of the first name. Those of the second
# measure, so make soak runs them alone; those of the third are make scale, and of the
# fourth make operate, of the fifth make faults.
SOAK     := ^TestSoak
SOAKPKG   = $(shell grep -rl --include='*_test.go' '^func TestSoak' . | xargs -n1 dirname | sort -u)
MEASURE  := ^TestSoak(Crowd|ConsoleCost|Floods|SetsChange|Speed)$$
SCALE    := ^TestSoak(ManyLeases|Idle)$$
OPERATE  := ^TestSoak(AlertsFire|RollingUpgrade)$$
FAULTS   := ^TestSoakFaultTable$$
SOAKLATER = $(MEASURE)|$(COMPUTE)|$(SCALE)|$(OPERATE)|$(FAULTS)

# What is a tool, run by a target of its own with arguments. No test has the same name.
TOOLS    := ^Test(Chaos|MutantTable|Seed)$$

# These compute and do nothing else, with -race for several minutes: TestSimulation and the
# other tests of these packages run the same code with it. They get what the others, which
# wait half of the time, leave of the processors, and a quarter of one that is never idle.
COMPUTE  := ^Test(Soak)?(AllPairs|ImpatientClients|Mutants|FoundersThatMeet|OptionsChangeNoOutcome|RunsRepeat|ServersThatShareA(Service|Store)|SetsGrow)$$
COMPUTES := ./internal/sim ./lockcore/sets ./lockcore/replica ./storage/optimistic

# The tests of these packages only drive programs, so they are built without -race. Of the others the
# longest come first.
DRIVERS  := ./cmd/fencelock ./chaos ./clients/... ./examples ./internal/docscheck
DRIVE     = $(subst -race,,$(FLAGS))
SOAKDRIVE = $(filter $(DRIVERS:/...=/%),$(SOAKPKG))
RACED     = $(shell $(GO) list ./storage/... $(PKG) | grep -vxF "$$($(GO) list $(DRIVERS))")

# How long make explore takes, and where its random tests begin.
EXPLOREFOR ?= 10m
SEED       ?= $(shell date +%s)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z -]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Go puts no commit into what it builds in a workspace.
STAMPED = github.com/fencelock/fencelock/cmd/fencelock/internal/version
STAMP   = -X $(STAMPED).releaseCommit=$(shell git rev-parse HEAD) -X $(STAMPED).releaseDate=$(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd)

.PHONY: build
build: ## build bin/fencelock
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags "-s -w $(STAMP)" -o bin/fencelock ./cmd/fencelock

.PHONY: run
run: ## run the service on its embedded default, http://127.0.0.1:8080
	$(GO) run ./cmd/fencelock serve

.PHONY: check
check: fmt-check vet ## the inner loop: what needs no server, in a minute
	$(GO) test -short -vet=off -p $(PARALLEL) -parallel 8 -skip '$(SOAK)|$(COMPUTE)' $(RACED) $(filter-out ./clients/...,$(DRIVERS))

.PHONY: test-tools
test-tools:
	@mkdir -p bin/test
	@$(GO) build -o bin/test/fencelock ./cmd/fencelock
	@cd release && GOWORK=off $(GO) build -o ../bin/test/gotestsum gotest.tools/gotestsum

.PHONY: test
test: test-tools ## the tests, with -race where it can find anything, on real Redis and Postgres that start by themselves; the same in every run
	@rm -f bin/test/times.*
	@$(call tests,-vet=off -count=1 -exec 'nice -n 5' -run '$(COMPUTE)' -skip '$(SOAK)' -timeout 30m,$(COMPUTES)) >bin/test/computed.txt 2>&1 & \
	computing=$$!; trap 'kill $$computing; exit 130' INT TERM; \
	$(call tests,$(DRIVE) -skip '$(SOAK)|$(TOOLS)',$(DRIVERS)); drove=$$?; \
	$(call tests,$(FLAGS) -skip '$(SOAK)|$(TOOLS)|$(COMPUTE)',$(RACED)); tested=$$?; \
	wait $$computing; computed=$$?; cat bin/test/computed.txt; exit $$((drove + tested + computed))
	@cd client/gocronlock && $(call tests,$(FLAGS),./...)
	$(slowest)
	@internal/testenv/versions.sh

.PHONY: proofs
proofs: test-tools ## more mutants of the simulation, and 70,000 simulated acquisitions
	@$(call tests,-count=1 -run '$(subst (Soak)?,Soak,$(COMPUTE))' -timeout 12m,$(COMPUTES))
	$(GO) test ./internal/sim -count=1 -run '^TestSimulation$$' -sim.seeds=50 -sim.workers=$(CORES) -timeout 12m

.PHONY: soak
soak: proofs ## what is too long for make test: every fault, more rounds, costs
	@$(call tests,$(DRIVE) -run '$(SOAK)' -skip '$(SOAKLATER)',$(SOAKDRIVE))
	@$(call tests,$(FLAGS) -run '$(SOAK)' -skip '$(SOAKLATER)',$(filter-out $(SOAKDRIVE),$(SOAKPKG)))
	@$(call tests,$(DRIVE) -p 1 -run '$(MEASURE)',./cmd/fencelock ./clients/java ./clients/python ./clients/typescript)
	$(GO) test -count=1 -run '^$$' -bench . -benchtime 1x ./api/... ./client ./lockcore/... ./storage/...
	$(MAKE) --no-print-directory kill-rounds ROUNDS=3

.PHONY: scale
scale: ## 100,000 leases and 10,000 waiters in Postgres, etcd and ZooKeeper: memory and disk, then and after; what idle servers cost on five Redis
	$(GO) test $(FLAGS) -p 1 -v -run '$(SCALE)' ./storage/... ./cmd/fencelock

.PHONY: operate
operate: ## every alert fires under what it watches for; three servers go to the next version and back behind nginx and HAProxy
	$(GO) test ./cmd/fencelock -count=1 -v -run '$(OPERATE)' -timeout 20m

.PHONY: explore
explore: ## random tests with new SEEDs for EXPLOREFOR (10m) and more; prints the seed of what fails
	RAPID_SEED=$(SEED) RAPID_CHECKS=1000 $(GO) test ./storage/... -run '^TestDifferential$$' -count=1 -timeout 0
	$(MAKE) --no-print-directory sim SIMTIME=$(EXPLOREFOR)

.PHONY: race
race: ## the tests COUNT times (5) in changing order, to find what fails only sometimes
	$(GO) test -race -count=$(COUNT) -shuffle=on -p $(PARALLEL) -parallel 4 -timeout 60m -skip '$(SOAK)' $(PKG)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (30s)
	@grep -rlE --include='*_test.go' '^func Fuzz' . | sort | while read -r file; do \
		sed -nE 's/^func (Fuzz[A-Za-z0-9_]*)\(.*/\1/p' "$$file" | while read -r target; do \
			echo "== $$target in $$(dirname "$$file") for $(FUZZTIME)"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" </dev/null || exit 1; \
		done || exit 1; \
	done

.PHONY: chaos
chaos: ## real processes under real faults for CHAOS_FOR (10m); CHAOS_SEED, CHAOS_CLIENTS (100), CHAOS_ONLY, CHAOS_OUT, CHAOS_ENGINE=etcd, postgres or zookeeper instead of Redis
	$(GO) test ./chaos -count=1 -run '^TestChaos$$' -v -timeout 0 -args -for $(or $(CHAOS_FOR),10m) -seed $(or $(CHAOS_SEED),0) \
		-clients $(or $(CHAOS_CLIENTS),100) -only '$(CHAOS_ONLY)' -engine '$(CHAOS_ENGINE)' $(if $(CHAOS_OUT),-out $(abspath $(CHAOS_OUT)))

# A module of its own, so that what is compared with is no dependency of the
# product.
.PHONY: bench
bench: ## compare with other locks, 15 minutes; BENCH=-quick for under two, BENCH=-h for more
	cd bench && $(GO) run . $(BENCH)

.PHONY: bench-compare
bench-compare: ## Go benchmarks against the merge base, by ratio; BENCH=-h for options
	cd bench && $(GO) run ./compare $(BENCH)

.PHONY: sim
sim: ## simulate the protocol until told to stop, or SIMTIME=10m; prints the seed of what fails, made small
	$(GO) test ./internal/sim -run TestSimulation -v -count=1 -timeout 0 -sim.start=0 -sim.seeds=0 -sim.workers=$(CORES) -sim.budget=$(SIMTIME)

.PHONY: docs-check
docs-check: ## run the commands and compile the snippets of README.md and docs/, generate a Go client, check links and lengths, open the site in a browser, and say what is not run and why
	FENCELOCK_TEST_GENERATORS=1 FENCELOCK_TEST_SITE=1 $(GO) test ./internal/docscheck -v -count=1

.PHONY: site
site: ## build the documentation's site into dist/site, with Hugo (apt-get install hugo); SITE_VERSION names the version
	site/build.sh

.PHONY: pictures
pictures: ## take the pictures in docs/images again, from the tests of the console
	FENCELOCK_TEST_PICTURES=$(CURDIR)/docs/images $(GO) test ./cmd/fencelock -run '^TestConsole(Pictures|Race)$$' -count=1

.PHONY: release
release: ## archives, deb, rpm, SBOMs, checksums and an image of the commit that is checked out, into dist/
	release/build.sh

.PHONY: install-check
install-check: ## install the command and the libraries as from a published release: Go modules from tags, wheel, sdist, npm tarball
	release/install.sh

.PHONY: release-check
release-check: ## build a release twice, byte by byte the same; install, upgrade and remove its packages in clean roots; run its image
	release/check.sh

.PHONY: chart-check
chart-check: export GOWORK = off
chart-check: ## render the Helm chart, lint it, and compare its pod with the manifests'
	cd release && $(GO) vet ./... && $(GO) test -count=1 ./...

.PHONY: compose-check
compose-check: ## run docker-compose.yml for real: starts, README's calls, lost Redis, Postgres and etcd, monitoring; says which images, and times
	deploy/compose/check.sh

.PHONY: faults
faults: ## every fault of every engine: what clients get, what an operator sees, and when it is over; writes docs/reference/faults.md
	$(GO) test ./cmd/fencelock -count=1 -v -run '$(FAULTS)' -timeout 20m -faults $(CURDIR)/docs/reference/faults.md

.PHONY: matrix
matrix: ## run the suites of stores and guards against other versions of their servers; MATRIX_ONLY=postgresql for one kind
	internal/matrix/run.sh

.PHONY: console-cost
console-cost: ## what an open console costs a server with a thousand locks, measured for three minutes
	FENCELOCK_TEST_COST_WINDOW=1m $(GO) test ./cmd/fencelock -run '^TestSoakConsoleCost$$' -v -count=1 -timeout 30m

.PHONY: kill-rounds
kill-rounds: ## is a command dead before the next grant? ROUNDS (100) with the service frozen, and with the network cut
	$(GO) test ./cmd/fencelock -count=1 -run '^TestCommandIsDeadBeforeTheNextGrant$$' -v -timeout 0 -args -rounds $(or $(ROUNDS),100) -round-ttl 1500ms

.PHONY: conformance
conformance: FORMAT := standard-verbose
conformance: test-tools ## what each client does in each scenario of the conformance kit, and whether that is right
	@$(call tests,-count=1 -v -run '^TestConformance$$' -timeout 10m,./clients/conformance)

.PHONY: faults-go faults-python faults-typescript faults-java
faults-go: FOLDER = internal/clienttest
faults-go faults-python faults-typescript faults-java: ## a client for FAULTS_FOR (10m) against servers that are killed and frozen: no deposit lost, no late work, no leak
	$(GO) test ./$(or $(FOLDER),clients/$(@:faults-%=%)) -count=1 -v -run '^TestSoakFaults$$' -timeout 0 -args -for $(or $(FAULTS_FOR),10m)

.PHONY: bench-guard-mariadb
bench-guard-mariadb: ## what the guard costs in MariaDB, relative to plain transactions
	$(GO) test ./internal/mysqlguardtest -run '^$$' -bench Guard -benchtime 9x

.PHONY: bench-guard
bench-guard: ## what the guard costs in Postgres, side by side with pgbench (RUNS=5, SECONDS_EACH=3)
	storage/pgguard/bench/run.sh

.PHONY: model
model: ## check the protocol's model with spin, and print the table of its RESULTS.txt
	docs/internals/model/run.sh

.PHONY: mutants
mutants: ## switch off every rule in turn, and write internal/sim/README.md; up to MUTANTLIMIT (2m) each
	$(GO) test ./internal/sim -run TestMutantTable -v -count=1 -timeout 0 -sim.mutants=$(CURDIR)/internal/sim/README.md -sim.limit=$(or $(MUTANTLIMIT),2m)

.PHONY: fmt
fmt: ## format the code
	gofmt -w $(GOFILES)

GOFILES = $(shell find . -name '*.go' -not -path './.git/*')

.PHONY: fmt-check
fmt-check: ## fail if a file is not formatted
	@unformatted="$$(gofmt -l $(GOFILES))"; \
	if [ -n "$$unformatted" ]; then echo "not formatted (make fmt):"; echo "$$unformatted"; exit 1; fi

.PHONY: vet
vet: ## go vet
	$(GO) vet $(PKG)

.PHONY: lint
lint: ## golangci-lint if it is installed, else gofmt and go vet
	@if command -v golangci-lint >/dev/null; then \
		echo "lint: $$(golangci-lint version --short 2>/dev/null | sed 's/^/golangci-lint /')"; for module in $(MODULES); do (cd $$module && golangci-lint run ./...) || exit 1; done; \
		for module in $(filter-out release,$(APART)); do (cd $$module && golangci-lint run ./...) || exit 1; done; \
		(cd release && GOWORK=off golangci-lint run ./...) || exit 1; \
	else \
		echo "lint: golangci-lint is not installed (https://golangci-lint.run); gofmt and go vet instead"; \
		$(MAKE) --no-print-directory fmt-check vet; \
	fi

.PHONY: mod-check
mod-check: ## fail if go.mod or go.sum are not what the code needs, or a module was changed
	$(GO) mod verify
	release/tidy.sh -diff

.PHONY: verify
verify: fmt-check vet lint mod-check test ## everything that must hold before a change is merged
