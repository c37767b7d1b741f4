# The commands of the house. `make run` and `make test` set up a fresh machine that has Rust, a C compiler, make and git.

SHELL := /bin/bash
.DEFAULT_GOAL := help
AXE := axe-core@4.14.1
.PHONY: help run test bench growth profile instructions pgo soak hostile siege memory suites fuzz fuzz-api dashboard paths lint lint-deploy check-tools test-tools advisories clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build-tools ## build, start the sample upstream and the gateway, issue demo keys, print commands to try; STORE (embedded, or redis)
	@[ "$(STORE)" != redis ] || deploy/install redis-server
	@STORE="$(STORE)" deploy/demo/run

# Tests wait more than they compute, above all for disks: one more than there are cores run at a time, on files in memory where there is room.
test: export RUST_TEST_THREADS ?= $(shell expr 1 + $$(nproc))
test: export TMPDIR ?= $(shell [ "$$(df --output=avail -m /dev/shm 2>/dev/null | tail -1)" -ge 1024 ] 2>/dev/null && echo /dev/shm || echo /tmp)
test: test-tools ## install what the tests need and run them all
	cargo test --workspace --locked

bench: test-tools ## Touchline beside its peers in one run; SLICE (500 ms), ROUNDS (22), KEEP=yes writes it into docs/benchmarks.md (tests/load/peers)
	@deploy/install nginx-core libnginx-mod-http-lua lua-nginx-redis haproxy nghttp2-client
	$(call measured,)

growth: test-tools ## how CPU and latency grow with keys, endpoints and gateways; SLICE, ROUNDS, KEEP as above
	@deploy/install nginx-core
	$(call measured,growth)

profile: test-tools ## instructions and cache misses a request, counted by callgrind, for bare pingora and Touchline on both stores
	@deploy/install nginx-core valgrind
	$(call measured,counts)

instructions: test-tools ## instructions of five requests against tests/load/instructions.txt; fails beyond 5 % more; KEEP=yes writes what was counted
	@deploy/install nginx-core valgrind
	$(call measured,budget)

pgo: test-tools ## a release build optimised by profile, target/pgo/touchline; make bench measures it too (deploy/pgo)
	@deploy/pgo

define measured
	cargo build --release --locked --bin touchline --example bare_pingora
	ulimit -n $$(ulimit -Hn); SLICE="$(SLICE)" ROUNDS="$(ROUNDS)" KEEP="$(KEEP)" cargo bench --locked --bench peers -- $(1)
endef

fuzz-api: build-tools ## the API's description and the running gateway against a public validator and a public fuzzer
	@tests/edge/fuzz-api

suites: suite-tls suite-slow suite-smuggling suite-load suite-metrics suite-answers ## what others wrote against the running gateway; each by itself: make suite-tls, …

suite-%: build-tools
	@deploy/install openssl python3-venv sslscan testssl.sh slowhttptest nghttp2-client prometheus
	@tests/edge/suites/$*

dashboard: test-tools ## the dashboard with live data in a headless Chromium, judged by axe-core; pictures in target/dashboard; LOAD_SECONDS (120), KEEP=yes writes those of the documents into docs/images
	@deploy/install chromium-headless-shell npm
	@npm install --silent --no-save --prefix target/dashboard $(AXE)
	AXE=target/dashboard/node_modules/axe-core/axe.min.js LOAD_SECONDS="$(LOAD_SECONDS)" KEEP="$(KEEP)" \
		cargo bench --workspace --locked --profile dev --bench dashboard

soak: test-tools ## long runs of faults: MINUTES, SEED, PARTS, DECISIONS, REQUESTS, ROUNDS, KILLS, MIDNIGHTS, RELOADS, UPGRADES, BINARY (tests/soak/main.rs)
	MINUTES="$(MINUTES)" SEED="$(SEED)" PARTS="$(PARTS)" DECISIONS="$(DECISIONS)" REQUESTS="$(REQUESTS)" ROUNDS="$(ROUNDS)" \
		KILLS="$(KILLS)" MIDNIGHTS="$(MIDNIGHTS)" RELOADS="$(RELOADS)" UPGRADES="$(UPGRADES)" BINARY="$(BINARY)" \
		cargo bench --locked --bench soak

memory: test-tools ## what idle TLS connections cost in memory; CONNECTIONS says how many (10000)
	ulimit -n $$(ulimit -Hn); CONNECTIONS="$(CONNECTIONS)" cargo bench --locked --bench connections

paths: ## millions of paths as attackers write them against what upstreams make of them; PATHS (10000000) and SEED say which
	PATHS="$(PATHS)" SEED="$(SEED)" cargo bench --locked --profile dev --bench paths

fuzz: build-tools ## every fuzz target for FUZZ_SECONDS (60) from its seeds; needs nightly and cargo-fuzz
	FUZZ_SECONDS="$(FUZZ_SECONDS)" tests/fuzz/run

hostile: ## what one hostile HTTP/2 connection costs in memory, form by form; exits with 1 where one costs more than it may
	cargo bench --locked --bench hostile

siege: ## attacks beside honest clients, one after the other and all together: IDLE, SLOW, GUESSING, RESETTING, CLIENTS, CALLS (tests/load/siege.rs)
	IDLE="$(IDLE)" SLOW="$(SLOW)" GUESSING="$(GUESSING)" RESETTING="$(RESETTING)" CLIENTS="$(CLIENTS)" CALLS="$(CALLS)" \
		cargo bench --locked --bench siege

lint: ## formatting, clippy, documentation, floors of the dependency tree
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked
	@deploy/install cargo-deny
	cargo deny --locked check licenses bans sources

lint-deploy: ## deploy/ against the public linters of what it is for (PyPI, haproxy, systemd)
	@deploy/lint

advisories: ## known holes of dependencies (needs the advisory database)
	@deploy/install cargo-deny
	cargo deny --locked check advisories

build-tools:
	@deploy/install cmake curl

test-tools: build-tools
	@deploy/install redis-server faketime prometheus

clean: ## remove what was built and what the demo left
	cargo clean
	rm -rf var
