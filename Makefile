# Everything that one does with this repository. "make help" lists it.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

GO ?= go
# VERSION=1.2.0 names the build. Without it the packages take theirs from the
# nearest tag, and plain programs are a development build.
VERSION ?=
ARCHS ?= amd64,arm64
# MATRIX=OfUpgrades/sid runs that part of the matrix; what was seen of the rest is
# kept.
MATRIX ?=

PROGRAMS := mesh-host mesh-control meshctl
TAGS := netgo osusergo sqlite_omit_load_extension
LDFLAGS := -s -w -linkmode external -extldflags "-static" \
	-X github.com/meshctl/mesh/internal/version.Version=$(or $(VERSION),0.0.0-dev)
TESTSUM = $(GO) run ./internal/tool/testsum

# Packages whose tests boot machines. They run after the others, two packages at
# a time, each in a lab of its own. Most of the time such a test waits for a
# machine, so more of them run at once than there are processors. A package that cannot be loaded is listed all the same (-e) and then fails; a
# list that came out empty stops the run, or it would test nothing and pass.
LAB_PACKAGES = $(or $(shell $(GO) list -e ./test/... | grep -E '/test/(lab|demo|bench)(/|$$)'),$(error no lab packages found))
UNIT_PACKAGES = $(or $(filter-out $(LAB_PACKAGES),$(shell $(GO) list -e ./...)),$(error no packages found))
# Tests of crash points, and their packages. They exist only under their build
# tag; the other tests of these packages were run without it.
FAULT_FILES = $(or $(shell grep -rl '^//go:build fault' --include='*_test.go' --exclude-dir=out .),$(error no tests of crash points found))
FAULT_PACKAGES = $(sort $(dir $(FAULT_FILES)))
FAULT_TESTS = ^($(shell sed -nE '/TestMain/!s/^func (Test[A-Za-z0-9_]*).*/\1/p' $(FAULT_FILES) | paste -s -d '|'))$$

.PHONY: help
help: ## list what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

.PHONY: build
build: setup-check ## the three programs, static, in out/bin
	@mkdir -p out/bin
	CGO_ENABLED=1 $(GO) build -trimpath -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o out/bin/ $(PROGRAMS:%=./cmd/%)
	@for program in $(PROGRAMS); do \
		headers=$$(readelf -l "out/bin/$$program") || exit 1; \
		case "$$headers" in *INTERP*) echo "out/bin/$$program is not static" >&2; exit 1 ;; esac; \
		echo "out/bin/$$program: static, $$(stat -c %s "out/bin/$$program") bytes"; \
	done

.PHONY: packages
packages: setup-build ## deb and rpm of the three programs, in out/packages
	@$(GO) run ./packaging/cmd/packages --arch $(ARCHS) --out out/packages $(if $(VERSION),--version '$(VERSION)')

.PHONY: check
check: setup-check ## format, vet, staticcheck, shellcheck, layering, records, generated pages
	@internal/tool/check.sh

.PHONY: test
test: setup ## every test, as root: unit, script, protocol and lab
	@$(TESTSUM) -skips refuse \
		-- $(GO) test -timeout 15m $(UNIT_PACKAGES) \
		-- $(GO) test -tags fault -run '$(FAULT_TESTS)' -timeout 15m $(FAULT_PACKAGES) \
		-- $(GO) test -count=1 -p 2 -parallel 8 -timeout 40m $(LAB_PACKAGES)

.PHONY: test-matrix
test-matrix: setup ## what takes longer: every client and flavour; table, out/matrix.json, docs/matrix.md
	@$(GO) run ./internal/tool/matrix -out out/matrix.json $(if $(MATRIX),-part) \
		-- $(GO) test -json -count=1 -p 1 -parallel 4 -timeout 150m -tags matrix -run '$(or $(MATRIX),Matrix)' ./repo ./test/lab ./test/lab/packages

.PHONY: bench-repo
bench-repo: setup-bench ## the repository beside reprepro, aptly, apt-ftparchive and createrepo_c
	@$(GO) run ./test/bench/repo

.PHONY: test-unit
test-unit: setup-check ## the tests that boot no machine; what could not run here is listed
	@$(TESTSUM) -skips list -- $(GO) test $(UNIT_PACKAGES)

.PHONY: bench-apply
bench-apply: setup-bench ## what a pass costs when all is right, beside other programs
	@$(GO) run ./test/bench/apply

.PHONY: bench-link
bench-link: setup-check ## what links and writes to 10,000 machines cost, beside bare TCP, TLS and SSH
	@$(GO) run ./test/bench/link

.PHONY: demo
demo: setup ## three real hosts, from nothing to every kind of outcome, each step checked
	@$(GO) run ./test/demo

.PHONY: lab-up
lab-up: setup ## boot the lab's hosts and leave them running
	@$(GO) run ./test/lab/cmd/lab up

.PHONY: lab-down
lab-down: ## end what lab-up started
	@$(GO) run ./test/lab/cmd/lab down

.PHONY: docs
docs: ## write the generated pages of docs
	@$(GO) run ./internal/tool/requirements
	@$(GO) run ./internal/tool/cases

.PHONY: setup setup-check setup-build setup-bench
setup: ## install what building and testing needs, when it is missing
	@internal/tool/setup.sh test
setup-check:
	@internal/tool/setup.sh check
setup-build:
	@internal/tool/setup.sh build
setup-bench:
	@internal/tool/setup.sh bench

.PHONY: clean
clean: ## remove what was built
	rm -rf out
