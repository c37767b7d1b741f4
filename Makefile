# The commands of the project. `make run` and `make test` set up a fresh machine that has Rust, a C compiler, make and git.

SHELL := /bin/bash
.DEFAULT_GOAL := help
AXE := axe-core@4.14.1
.PHONY: help run test bench growth profile instructions pgo soak hostile siege memory suites fuzz fuzz-api dashboard scale paths release lint lint-deploy check-tools test-tools advisories clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build-tools ## build, start the sample upstream and the gateway, issue demo keys, print commands to try; STORE (embedded, or redis)
	@[ "$(STORE)" != redis ] || deploy/install redis-server
	@STORE="$(STORE)" deploy/demo/run

# Tests mostly wait for other processes: run three for each core at a time, with files in memory if there is room.
test: export RUST_TEST_THREADS ?= $(shell expr 3 \* $$(nproc))
test: export TMPDIR ?= $(shell [ "$$(df --output=avail -m /dev/shm 2>/dev/null | tail -1)" -ge 1024 ] 2>/dev/null && echo /dev/shm || echo /tmp)
# The message of a failed test, not its stack, is at the end of a long log.
test: export RUST_BACKTRACE = 0
test: test-tools ## install the tools that the tests need, and run all tests
	cargo test --workspace --locked

bench: test-tools ## compare Touchline with its peers in one run; SLICE (500 ms), ROUNDS (22); KEEP=yes updates docs/benchmarks.md (tests/load/peers)
	@deploy/install nginx-core libnginx-mod-http-lua lua-nginx-redis haproxy nghttp2-client
	$(call measured,)

growth: test-tools ## measure how CPU and latency grow with keys, endpoints and gateways; SLICE, ROUNDS, KEEP as for bench
	@deploy/install nginx-core
	$(call measured,growth)

profile: test-tools ## count instructions and cache misses a request with callgrind, for bare pingora and Touchline on both stores
	@deploy/install nginx-core valgrind
	$(call measured,counts)

instructions: test-tools ## compare the instructions of six requests with tests/load/instructions.txt; fails if 5 % above; KEEP=yes updates the file
	@deploy/install nginx-core valgrind
	$(call measured,budget)

pgo: test-tools ## build target/pgo/touchline, a release build optimised by profile, which make bench then measures too (deploy/pgo)
	@deploy/pgo

define measured
	cargo build --release --locked --bin touchline --example bare_pingora --example permitted
	ulimit -n $$(ulimit -Hn); SLICE="$(SLICE)" ROUNDS="$(ROUNDS)" KEEP="$(KEEP)" cargo bench --locked --bench peers -- $(1)
endef

fuzz-api: build-tools ## check the OpenAPI document with a public validator, and the running gateway with a public fuzzer
	@tests/edge/fuzz-api

suites: suite-tls suite-slow suite-smuggling suite-load suite-metrics suite-answers ## run third-party test suites against the running gateway; each by itself: make suite-tls, …

suite-%: build-tools
	@deploy/install openssl python3-venv sslscan testssl.sh slowhttptest nghttp2-client prometheus
	@tests/edge/suites/$*

dashboard: test-tools ## check the dashboard with live data in a headless Chromium with axe-core; pictures in target/dashboard; LOAD_SECONDS (120); KEEP=yes updates docs/images
	@deploy/install chromium-headless-shell npm
	@npm install --silent --no-save --prefix target/dashboard $(AXE)
	AXE=target/dashboard/node_modules/axe-core/axe.min.js LOAD_SECONDS="$(LOAD_SECONDS)" KEEP="$(KEEP)" \
		cargo bench --workspace --locked --profile dev --bench dashboard

soak: test-tools ## inject faults for a long time: MINUTES, SEED, PARTS, DECISIONS, REQUESTS, ROUNDS, KILLS, MIDNIGHTS, RELOADS, UPGRADES, BINARY (tests/soak/main.rs)
	MINUTES="$(MINUTES)" SEED="$(SEED)" PARTS="$(PARTS)" DECISIONS="$(DECISIONS)" REQUESTS="$(REQUESTS)" ROUNDS="$(ROUNDS)" \
		KILLS="$(KILLS)" MIDNIGHTS="$(MIDNIGHTS)" RELOADS="$(RELOADS)" UPGRADES="$(UPGRADES)" BINARY="$(BINARY)" \
		cargo bench --locked --bench soak

memory: test-tools ## measure the memory of idle TLS connections; CONNECTIONS (10000)
	ulimit -n $$(ulimit -Hn); CONNECTIONS="$(CONNECTIONS)" cargo bench --locked --bench connections

scale: test-tools ## measure start, memory and commands with very many keys, and an idle gateway: KEYS (1000000), IDLE_SECONDS (120)
	KEYS="$(KEYS)" IDLE_SECONDS="$(IDLE_SECONDS)" cargo bench --locked --bench scale

paths: build-tools ## compare how the gateway and upstreams read millions of attackers' paths; PATHS (10000000), SEED
	PATHS="$(PATHS)" SEED="$(SEED)" cargo bench --locked --profile dev --bench paths

fuzz: build-tools ## run every fuzz target for FUZZ_SECONDS (60) from its seeds; needs nightly and cargo-fuzz
	FUZZ_SECONDS="$(FUZZ_SECONDS)" tests/fuzz/run

hostile: build-tools ## measure the memory that each kind of hostile HTTP/2 connection costs; fails if one exceeds its limit
	cargo bench --locked --bench hostile

siege: build-tools ## run attacks beside honest clients, one by one and all together: IDLE, SLOW, GUESSING, RESETTING, CLIENTS, CALLS (tests/load/siege.rs)
	IDLE="$(IDLE)" SLOW="$(SLOW)" GUESSING="$(GUESSING)" RESETTING="$(RESETTING)" CLIENTS="$(CLIENTS)" CALLS="$(CALLS)" \
		cargo bench --locked --bench siege

release: ## build the release of this commit in target/dist: binary, Debian package, SBOM, SHA256SUMS; CHECK=yes builds twice and compares; TARGET (this machine's, or aarch64-unknown-linux-gnu)
	@CHECK="$(CHECK)" TARGET="$(TARGET)" deploy/release

lint: ## check formatting, clippy, documentation, licences and sources of dependencies
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo check --manifest-path tests/fuzz/Cargo.toml --target-dir target --locked
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked
	@deploy/install cargo-deny
	cargo deny --locked check licenses bans sources

lint-deploy: ## check deploy/ with public linters (from PyPI, haproxy, systemd)
	@deploy/lint

advisories: ## check dependencies for known vulnerabilities (needs the advisory database)
	@deploy/install cargo-deny
	cargo deny --locked check advisories

build-tools:
	@deploy/install cmake curl

test-tools: build-tools
	@deploy/install redis-server faketime prometheus

clean: ## remove build results and the demo's files
	cargo clean
	rm -rf var
