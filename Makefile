# windlass: the few commands that a person needs. Each installs what it needs (as root, from Debian's
# packages), or names what is missing.

PREFIX  ?= /usr/local
DESTDIR ?=
CARGO   ?= cargo
BIN     := $(or $(CARGO_TARGET_DIR),target)/release
DIST    := crates/programs/windlassd/dist
BROKER  := crates/programs/broker/dist
DOC      = $(PREFIX)/share/doc/windlass
VERSION  = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

.PHONY: build demo demo-overlay test bench check soak sanitize aarch64 fuzz install uninstall deb wheel clean help

help: ## what there is
	@grep -hE '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## target/release/windlass, windlassd, windlass-broker, windlass-cni, windlass-lookup-etcd, libwindlass_sockets.so, libwindlass_alloc.so and what libwindlass is linked of
	$(CARGO) build --release --locked -p windlass -p windlassd -p windlass-broker -p windlass-cni -p windlass-lookup-etcd -p windlass-preload -p windlass-alloc -p windlass-framed

demo: build ## two tenants, the host and a stranger on one bridge, measured (under two minutes)
	@scripts/need demo
	$(CARGO) build --release --locked -p windlass-bench
	@scripts/demo

demo-overlay: build ## three hosts, two tenants with the same addresses, a registry that goes and comes, a guest that moves (root)
	@scripts/need demo-overlay
	@scripts/demo-overlay

test: ## every test that CI runs; BESIDE='make check': and that beside them
	@scripts/need test
	@scripts/test $(BESIDE)

bench: build ## the comparisons with named peers
	@scripts/need bench
	$(CARGO) build --release --locked -p windlass-bench
	$(CARGO) build --release --locked -p windlass-worker --example visit_cost -p windlass-channel --example channel_cost
	@scripts/bench

check: ## format, lints, dependency directions, licences, docs, generated files
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) run --locked -q -p xtask -- check
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --workspace --no-deps --document-private-items --locked

soak: build ## longer sweeps; the last result stands in docs/TESTING.md
	@scripts/need soak
	@scripts/soak

aarch64: ## builds and lints for aarch64, and tests under qemu-user what needs no namespace
	@scripts/need aarch64
	@scripts/aarch64

sanitize: ## unsafe crates under the address and thread sanitizers (nightly)
	@scripts/sanitize

install: build ## into $(DESTDIR)$(PREFIX)
	install -D -s -m 0755 $(BIN)/windlass  $(DESTDIR)$(PREFIX)/bin/windlass
	install -D -s -m 0755 $(BIN)/windlassd $(DESTDIR)$(PREFIX)/sbin/windlassd
	install -D -s -m 0755 $(BIN)/windlass-broker $(DESTDIR)$(PREFIX)/sbin/windlass-broker
	install -D -s -m 0755 $(BIN)/windlass-cni $(DESTDIR)$(PREFIX)/lib/cni/windlass-cni
	install -D -s -m 0755 $(BIN)/windlass-lookup-etcd $(DESTDIR)$(PREFIX)/lib/windlass/windlass-lookup-etcd
	install -D -s -m 0644 $(BIN)/libwindlass_sockets.so $(DESTDIR)$(PREFIX)/lib/windlass/libwindlass_sockets.so
	install -D -s -m 0644 $(BIN)/libwindlass_alloc.so $(DESTDIR)$(PREFIX)/lib/windlass/libwindlass_alloc.so
	install -D -m 0644 crates/programs/alloc/include/windlass/umem.h $(DESTDIR)$(PREFIX)/include/windlass/umem.h
	scripts/libwindlass $(BIN)/libwindlass_framed.a "$(DESTDIR)" $(PREFIX)
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' crates/programs/alloc/include/windlass-umem.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/windlass-umem.pc
	for page in man/*.[0-9]; do \
	  install -D -m 0644 $$page $(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$${page##*/} || exit 1; done
	install -D -m 0644 completions/windlass.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/windlass
	install -D -m 0644 completions/_windlass     $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_windlass
	install -D -m 0644 completions/windlass.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/windlass.fish
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system $(DESTDIR)$(DOC)
	sed 's|/usr/bin/windlassd|$(PREFIX)/sbin/windlassd|' $(DIST)/windlassd.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/windlassd.service
	sed 's|/usr/bin/windlass-broker|$(PREFIX)/sbin/windlass-broker|' $(BROKER)/windlass-broker.service > $(DESTDIR)$(PREFIX)/lib/systemd/system/windlass-broker.service
	install -D -m 0644 $(DIST)/sysusers.conf $(DESTDIR)$(PREFIX)/lib/sysusers.d/windlass.conf
	install -D -m 0644 $(DIST)/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/windlass.conf
	install -m 0644 $(DIST)/windlassd.socket $(BROKER)/windlass-broker.socket $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 0644 $(DIST)/windlass.toml $(DIST)/grafana.json $(BROKER)/sockets.conf crates/programs/cni/dist/kubernetes.yaml LICENSE-APACHE LICENSE-MIT \
	  README.md ARCHITECTURE.md CHANGELOG.md SECURITY.md docs/*.md docs/*.json $(DESTDIR)$(DOC)

uninstall: ## what install put there; configuration and state stay
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/windlass sbin/windlassd sbin/windlass-broker lib/cni/windlass-cni lib/windlass/windlass-lookup-etcd lib/windlass/libwindlass_sockets.so lib/windlass/libwindlass_alloc.so \
	  $(addprefix lib/,libwindlass.so.1.0 libwindlass.so.1 libwindlass.so libwindlass.a pkgconfig/windlass.pc pkgconfig/windlass-umem.pc) include/windlass.h include/windlass/umem.h \
	  lib/sysusers.d/windlass.conf lib/tmpfiles.d/windlass.conf share/bash-completion/completions/windlass share/zsh/site-functions/_windlass share/fish/vendor_completions.d/windlass.fish \
	  $(addprefix lib/systemd/system/,windlassd.service windlassd.socket windlass-broker.service windlass-broker.socket) \
	  $(foreach page,$(wildcard man/*.[0-9]),share/man/man$(subst .,,$(suffix $(page)))/$(notdir $(page))))
	rm -rf $(DESTDIR)$(DOC)
	-rmdir $(DESTDIR)$(PREFIX)/lib/windlass $(DESTDIR)$(PREFIX)/lib/cni $(DESTDIR)$(PREFIX)/include/windlass

deb: build ## target/windlass_VERSION_ARCH.deb, for Debian 12 and newer
	@scripts/deb

wheel: build ## target/windlass-VERSION-py3-none-PLATFORM.whl: the Python module, with libwindlass inside
	@scripts/wheel $(BIN)/libwindlass_framed.a $(dir $(BIN))

clean: ## remove what was built
	$(CARGO) clean
