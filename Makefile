# The commands of the house. `make run` and `make test` set up a fresh machine that has Rust, a C compiler, make and git.

SHELL := /bin/bash
.DEFAULT_GOAL := help
AXE := axe-core@4.14.1
.PHONY: help run test bench growth soak fuzz-api dashboard paths lint check-tools test-tools advisories clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build-tools ## build, start the sample upstream and the gateway, issue demo keys, print commands to try
	@deploy/demo/run

test: test-tools ## install what the tests need and run them all
	cargo test --workspace --locked

bench: test-tools ## Touchline beside its peers in one run; DURATION (seconds) and ROUNDS say how long (5 and 3)
	@deploy/install nginx-core libnginx-mod-http-lua lua-nginx-redis haproxy wrk nghttp2-client
	cargo build --release --locked --bin touchline --example bare_pingora
	DURATION="$(DURATION)" ROUNDS="$(ROUNDS)" cargo bench --locked --bench peers

growth: test-tools ## how CPU and latency grow with keys, endpoints and gateways; DURATION and ROUNDS as above
	@deploy/install nginx-core wrk
	cargo build --release --locked --bin touchline --example bare_pingora
	DURATION="$(DURATION)" ROUNDS="$(ROUNDS)" cargo bench --locked --bench peers -- growth

fuzz-api: build-tools ## the API's description and the running gateway against a public validator and a public fuzzer
	@tests/edge/fuzz-api

dashboard: test-tools ## the dashboard with live data in a headless Chromium, judged by axe-core; pictures in target/dashboard; LOAD_SECONDS (120)
	@deploy/install chromium-headless-shell npm
	@npm install --silent --no-save --prefix target/dashboard $(AXE)
	AXE=target/dashboard/node_modules/axe-core/axe.min.js LOAD_SECONDS="$(LOAD_SECONDS)" \
		cargo bench --locked --profile dev --bench dashboard

soak: test-tools ## long runs of faults: MINUTES, SEED, PARTS, DECISIONS, REQUESTS, ROUNDS, KILLS, MIDNIGHTS, RELOADS, UPGRADES (tests/soak/main.rs)
	MINUTES="$(MINUTES)" SEED="$(SEED)" PARTS="$(PARTS)" DECISIONS="$(DECISIONS)" REQUESTS="$(REQUESTS)" ROUNDS="$(ROUNDS)" \
		KILLS="$(KILLS)" MIDNIGHTS="$(MIDNIGHTS)" RELOADS="$(RELOADS)" UPGRADES="$(UPGRADES)" cargo bench --locked --bench soak

paths: ## millions of paths as attackers write them against what upstreams make of them; PATHS (10000000) and SEED say which
	PATHS="$(PATHS)" SEED="$(SEED)" cargo bench --locked --profile dev --bench paths

lint: ## formatting, clippy, documentation, floors of the dependency tree
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked
	@deploy/install cargo-deny
	cargo deny --locked check licenses bans sources

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
