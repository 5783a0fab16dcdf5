# Two commands matter: `make test` and `make demo`. Both set up what they need; what they build is kept in .cache.
.DEFAULT_GOAL := help
SHELL := /bin/sh
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

CACHE := $(CURDIR)/.cache
# Tools are built anew when tools/go.mod changes.
TOOLS := $(CACHE)/tools/$(shell cksum < tools/go.mod | cut -d' ' -f1)
CONTROLLER_GEN := $(TOOLS)/controller-gen
GOLANGCI_LINT := $(TOOLS)/golangci-lint
CRD_REF_DOCS := $(TOOLS)/crd-ref-docs
REFERENCE := docs/reference/webhooks.postrider.dev.md
STACK := $(CACHE)/bin/stack

# Modules below this one that have Go code of ours; they are checked in their own folder.
MODULES := $(patsubst ./%/go.mod,%,$(shell find . -mindepth 2 -name go.mod -not -path './.cache/*' \
	-exec sh -c 'for m; do d=$$(dirname "$$m"); find "$$d" -name "*.go" | grep -q . && echo "$$m"; done' sh {} + | sort))

# What `go test` runs; PKG and ARGS narrow it down: make test-go PKG=./store ARGS='-run Claim -v'
PKG ?= ./...
ARGS ?=
TEST_FLAGS := -race -count=1 -timeout=20m $(ARGS)

export GOLANGCI_LINT_CACHE := $(CACHE)/golangci-lint
export GOWORK := off

.PHONY: help
help: ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: check-generated lint test-go ## Everything that CI checks: generated files, lint, vet, all tests with the race detector

.PHONY: test-go
test-go: go cc $(CACHE)/bin/gotest stack ## The tests alone
	@echo "test: $(PKG) with the race detector (usually 5 to 10 minutes, of which chaos takes 3; more when nothing is compiled yet)"
	@set -e; GOTEST="$(CACHE)/bin/gotest"; \
	"$(STACK)" -- "$$GOTEST" $(TEST_FLAGS) $(PKG); \
	if [ "$(PKG)" = ./... ]; then for m in $(MODULES); do \
		if find "$$m" -name '*_test.go' | grep -q .; then \
			echo "test: module $$m"; (cd "$$m" && "$$GOTEST" $(TEST_FLAGS) ./...); \
		fi; \
	done; fi

.PHONY: lint
lint: go $(GOLANGCI_LINT) ## Lint and vet all modules
	@echo "lint: this module, $(MODULES) (usually a minute, seconds when little has changed)"
	@go vet ./... && $(GOLANGCI_LINT) run --allow-serial-runners
	@set -e; for m in $(MODULES); do (cd "$$m" && go vet ./... && $(GOLANGCI_LINT) run --allow-serial-runners); done

.PHONY: format
format: go $(GOLANGCI_LINT) ## Format all modules
	@$(GOLANGCI_LINT) fmt
	@set -e; for m in $(MODULES); do (cd "$$m" && $(GOLANGCI_LINT) fmt); done

# generate-into writes all generated files below a folder, $(1). The chart's CRDs and roles are copies of those in config.
CHART_FILES := charts/postrider/files
define generate-into
	mkdir -p $(1)/api/v1alpha1 $(1)/config/crd/bases $(1)/config/rbac $(1)/docs/reference $(1)/$(CHART_FILES)/crds $(1)/$(CHART_FILES)/rbac
	$(CONTROLLER_GEN) object paths=./api/v1alpha1 output:object:dir=$(1)/api/v1alpha1
	$(CONTROLLER_GEN) crd paths=./api/v1alpha1 output:crd:dir=$(1)/config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=postrider-controller paths=./controllers output:rbac:dir=$(1)/config/rbac
	$(CRD_REF_DOCS) --source-path=api --config=docs/reference/config.yaml --renderer=markdown --output-path=$(1)/$(REFERENCE) --log-level=ERROR
	cp $(1)/config/crd/bases/*.yaml $(1)/$(CHART_FILES)/crds
	cp $(1)/config/rbac/role.yaml config/rbac/leader_election_role.yaml config/rbac/postrider_*_role.yaml $(1)/$(CHART_FILES)/rbac
endef

.PHONY: generate
generate: go $(CONTROLLER_GEN) $(CRD_REF_DOCS) ## Write the generated files: deep copies, the CRD and its reference, the controller's role, the chart's copies
	@$(call generate-into,.)

# Compares with a copy, so that it works in a tree with other changes.
.PHONY: check-generated
check-generated: go $(CONTROLLER_GEN) $(CRD_REF_DOCS) ## Fail if a generated file is not what `make generate` writes
	@rm -rf $(CACHE)/generated
	@$(call generate-into,$(CACHE)/generated)
	@set -e; cd $(CACHE)/generated; stale=; \
	for f in $$(find . -type f); do diff -u "$(CURDIR)/$$f" "$$f" || stale=yes; done; \
	for f in $$(cd "$(CURDIR)" && ls config/crd/bases/*.yaml); do [ -e "$$f" ] || { echo "$$f is generated from nothing"; stale=yes; }; done; \
	[ -z "$$stale" ] || { echo "generated files are out of date; run: make generate" >&2; exit 1; }
	@echo "generated files: up to date"

.PHONY: demo
demo: go $(CACHE)/bin/demo ## The main job on this machine, every step checked
	@"$(CACHE)/bin/demo"

.PHONY: up
up: go $(CACHE)/bin/demo ## The demo's stack, left running until Ctrl-C; addresses in .cache/up.env
	@exec "$(CACHE)/bin/demo" up

.PHONY: cluster-up
cluster-up: go $(CACHE)/bin/cluster ## A real Kubernetes of one node on this machine, until cluster-down (Linux, root)
	@"$(CACHE)/bin/cluster" up

.PHONY: cluster-down
cluster-down: go $(CACHE)/bin/cluster ## Take it down, also what a killed one left
	@"$(CACHE)/bin/cluster" down

.PHONY: test-e2e
test-e2e: go $(CACHE)/bin/e2e ## The chart on a cluster of its own, scenario by scenario (Linux, root); ARGS="-keep -run PATTERN"
	@"$(CACHE)/bin/e2e" $(ARGS)

.PHONY: bench
bench: go $(CACHE)/bin/bench ## The benchmarks, half an hour alone on this machine (Linux); ARGS='-scale small': that they run, in 3 minutes
	@cd bench && exec "$(CACHE)/bin/bench" $(ARGS)

.PHONY: bench-profile
bench-profile: ## Where the time goes of what misses its goal: CPU, wait events, statements and plans, to bench/results/profile; 2 minutes
	@$(MAKE) --no-print-directory bench ARGS='-only drain,accept_deliver,latency,held_snapshot,baseline_* -rounds 1 -profile'

.PHONY: accept-load
accept-load: go stack ## 1,000 producers for a minute while Postgres is restarted twice, and what shared commits are worth: 5 minutes
	@"$(STACK)" -- go test -count=1 -timeout=20m -v -run 'RestartedTwice|SeveralTimes' $(ARGS) ./ingest -load=1m

.PHONY: bench-report
bench-report: go ## docs/performance.md and its charts, from bench/results/latest.json
	@cd bench && go run . report

# SEEDS: one run for each; none: one by chance. SCENARIOS: names, or all.
DURATION ?= 10m
SEED ?=
SEEDS ?= $(SEED)
SCENARIOS ?= everything
.PHONY: chaos
chaos: go $(CACHE)/bin/chaos ## Break an installation while it works, and check what came of it; SEED= or SEEDS=, DURATION=, SCENARIOS=
	@"$(CACHE)/bin/chaos" -duration "$(DURATION)" -seeds "$(SEEDS)" -scenarios "$(SCENARIOS)"

.PHONY: build
build: go ## The binary, into bin/
	CGO_ENABLED=0 go build -trimpath -o bin/postrider ./cmd/postrider

# VERSION names the image's tag and what the binary says of itself; PLATFORMS what it is to run on.
VERSION ?= dev
PLATFORMS ?= linux/amd64,linux/arm64
.PHONY: image
image: go ## The container image for amd64 and arm64, with its SBOM, into bin/image; needs no Docker
	@cd test/image && go run . -version "$(VERSION)" -platforms "$(PLATFORMS)" -out "$(CURDIR)/bin/image"

.PHONY: clean
clean: ## Delete what was built, caches included
	rm -rf bin $(CACHE)

# Go's own cache knows whether these have to be built again.
.PHONY: stack $(CACHE)/bin/gotest $(CACHE)/bin/demo $(CACHE)/bin/cluster $(CACHE)/bin/e2e $(CACHE)/bin/chaos $(CACHE)/bin/bench
stack:
	@go build -o "$(STACK)" ./test/localstack/cmd/stack
$(CACHE)/bin/gotest:
	@go build -o "$@" ./test/gotest
$(CACHE)/bin/demo:
	@go build -o "$@" ./test/demo
$(CACHE)/bin/cluster:
	@go build -o "$@" ./test/cluster/cmd/cluster
$(CACHE)/bin/e2e:
	@go build -o "$@" ./test/e2e
$(CACHE)/bin/chaos:
	@go build -o "$@" ./test/chaos/cmd/chaos
$(CACHE)/bin/bench:
	@cd bench && go build -o "$@" .

$(CONTROLLER_GEN):
	@echo "building controller-gen, once for this checkout (usually under a minute)"
	@cd tools && CGO_ENABLED=0 timeout 30m go build -o "$@" sigs.k8s.io/controller-tools/cmd/controller-gen
$(CRD_REF_DOCS):
	@cd tools && CGO_ENABLED=0 go build -o "$@" github.com/elastic/crd-ref-docs
$(GOLANGCI_LINT):
	@echo "building golangci-lint with the Kubernetes API linter, once for this checkout (usually 1 to 2 minutes on 2 cores)"
	@cd tools && CGO_ENABLED=0 timeout 30m go build -ldflags '-s -w' -o "$@" sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter

.PHONY: go cc
go:
	@command -v go >/dev/null || { echo "Go 1.26 or later is needed and there is no go in PATH: https://go.dev/doc/install" >&2; exit 1; }
cc: go
	@command -v "$$(go env CC | cut -d' ' -f1)" >/dev/null || { echo "the race detector needs a C compiler: install gcc (Debian, Ubuntu: apt-get install gcc libc6-dev) or set CC" >&2; exit 1; }
