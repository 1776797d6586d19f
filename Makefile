# hotshelf: one entry for people; `cargo xtask check` is the one for every change.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PREFIX ?= /usr/local
DESTDIR ?=
# Where mount(8) looks for helpers, so that `mount -t fuse.hotshelf` and fstab work.
SBINDIR ?= /sbin
BINDIR := $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR := $(PREFIX)/include
DATADIR := $(PREFIX)/share
UNITDIR ?= $(PREFIX)/lib/systemd/system
# Where debuggers look for symbols; STRIP=no leaves them in the programs, as a packager wants who takes them out later.
export DEBUGDIR ?= $(if $(filter /usr /usr/%,$(PREFIX)),/usr/lib/debug,$(PREFIX)/lib/debug)
export STRIP ?= yes

CARGO := scripts/cargo
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
PROGRAM := $(TARGET)/release/hotshelf
LIBRARY := $(TARGET)/release/libhotshelf.so
EXTENSION := $(TARGET)/release/libhotshelf_sqlite.so
NOCACHE := $(TARGET)/release/libhotshelf_nocache.so
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

BASH_DIR := $(DATADIR)/bash-completion/completions
ZSH_DIR := $(DATADIR)/zsh/site-functions
FISH_DIR := $(DATADIR)/fish/vendor_completions.d

.PHONY: help setup build fio-engine demo test test-full test-vm bench check docs install uninstall clean

help: ## this text
	@echo "hotshelf: the speed of the small device with the capacity of the big one"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-10s %s\n", $$1, $$2 }'
	@echo
	@echo "  install takes PREFIX (now $(PREFIX)), DESTDIR, SBINDIR (now $(SBINDIR)), LIBDIR, UNITDIR, DEBUGDIR and STRIP=no"

setup: ## install what building and testing needs (Debian, Ubuntu)
	scripts/setup.sh test

# The programs as they are installed: linked as a whole, with the lines that a stack trace names. All else is built faster.
WHOLE := CARGO_PROFILE_RELEASE_LTO=thin CARGO_PROFILE_RELEASE_DEBUG=line-tables-only

build: ## build the release program, the C library, SQLite's extension and what nocache preloads
	$(WHOLE) $(CARGO) build --release --locked --package cli --package capi --package sqlitevfs --package nocache

fio-engine: build ## build fio's engine, target/fio/libhotshelf_fio.so, for the fio that is installed
	fio/build.sh

demo: ## see it work on scratch directories
	scripts/setup.sh demo
	$(CARGO) build --release --locked --package cli
	HOTSHELF=$(abspath $(PROGRAM)) scripts/demo.sh

test: ## every test a change must pass
	@scripts/test.sh

test-full: ## the same with the long runs
	@FULL=1 scripts/test.sh

test-vm: ## the tests in a virtual machine with NVMe drives alone
	scripts/setup.sh vm
	$(CARGO) build --release --locked --package cli --package capi
	HOTSHELF=$(abspath $(PROGRAM)) tests/vm/run.sh

bench: build ## measure against the plain directories, the kernel and other caches
	HOTSHELF=$(abspath $(PROGRAM)) scripts/bench.sh

check: ## formatting, clippy, unit tests, the house's rules
	$(CARGO) xtask check

docs: ## build the documentation site, target/book (needs mdbook: cargo install mdbook)
	@command -v mdbook >/dev/null || { echo "mdbook is not installed: cargo install mdbook --no-default-features --features search"; exit 1; }
	mdbook build
	@echo "target/book/index.html"

# Not rebuilt when it is there: installing is often done as root, building should not be. What root builds in another user's checkout
# that user could not build again.
$(PROGRAM) $(LIBRARY) $(EXTENSION) $(NOCACHE):
	@if [ "$$(id -u)" = 0 ] && [ "$$(stat -c %u .)" != 0 ]; then \
		echo "$@ is not built: run \`make build\` as $$(stat -c %U .), then \`make install\` as root"; exit 1; \
	fi
	$(MAKE) build

install: $(PROGRAM) $(LIBRARY) $(EXTENSION) $(NOCACHE) ## install the program, the C library, man pages, completions, unit and mount helper
	scripts/install-stripped 755 $(PROGRAM) $(BINDIR)/hotshelf $(DESTDIR)
	# Nothing is written into the checkout: it may be another user's.
	@set -e; generated=$$(mktemp -d); trap 'rm -rf "$$generated"' EXIT; \
	$(PROGRAM) generate man "$$generated/man"; \
	$(PROGRAM) generate completions "$$generated/completions"; \
	install -d $(DESTDIR)$(DATADIR)/man/man1 $(DESTDIR)$(DATADIR)/man/man5; \
	install -m644 "$$generated"/man/*.1 $(DESTDIR)$(DATADIR)/man/man1/; \
	install -m644 "$$generated"/man/*.5 $(DESTDIR)$(DATADIR)/man/man5/; \
	install -Dm644 "$$generated/completions/hotshelf.bash" $(DESTDIR)$(BASH_DIR)/hotshelf; \
	install -Dm644 "$$generated/completions/_hotshelf" $(DESTDIR)$(ZSH_DIR)/_hotshelf; \
	install -Dm644 "$$generated/completions/hotshelf.fish" $(DESTDIR)$(FISH_DIR)/hotshelf.fish; \
	echo "man pages are in $(DESTDIR)$(DATADIR)/man, completions in $(DESTDIR)$(BASH_DIR), $(ZSH_DIR) and $(FISH_DIR)"
	scripts/install-stripped 755 $(LIBRARY) $(LIBDIR)/libhotshelf.so.$(VERSION) $(DESTDIR)
	ln -sfn libhotshelf.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libhotshelf.so.0
	ln -sfn libhotshelf.so.0 $(DESTDIR)$(LIBDIR)/libhotshelf.so
	scripts/install-stripped 644 $(LIBRARY:.so=.a) $(LIBDIR)/libhotshelf.a $(DESTDIR)
	scripts/install-stripped 755 $(EXTENSION) $(LIBDIR)/libhotshelf_sqlite.so $(DESTDIR)
	scripts/install-stripped 755 $(NOCACHE) $(LIBDIR)/libhotshelf_nocache.so $(DESTDIR)
	install -Dm644 include/hotshelf.h $(DESTDIR)$(INCLUDEDIR)/hotshelf.h
	install -Dm644 include/hotshelf_posix.h $(DESTDIR)$(INCLUDEDIR)/hotshelf_posix.h
	install -Dm644 crates/base/policy/include/hotshelf_policy.h $(DESTDIR)$(INCLUDEDIR)/hotshelf_policy.h
	install -Dm644 crates/frontends/capi/man/hotshelf.3 $(DESTDIR)$(DATADIR)/man/man3/hotshelf.3
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|; s|@VERSION@|$(VERSION)|' contrib/hotshelf.pc.in \
		> '$(DESTDIR)$(LIBDIR)/pkgconfig/hotshelf.pc'
	chmod 644 '$(DESTDIR)$(LIBDIR)/pkgconfig/hotshelf.pc'
	install -Dm644 contrib/example.toml $(DESTDIR)$(DATADIR)/doc/hotshelf/example.toml
	install -Dm644 LICENSE $(DESTDIR)$(DATADIR)/doc/hotshelf/LICENSE
	install -d $(DESTDIR)$(UNITDIR)
	sed 's|/usr/bin/hotshelf|$(BINDIR)/hotshelf|g' 'contrib/hotshelf@.service' > '$(DESTDIR)$(UNITDIR)/hotshelf@.service'
	chmod 644 '$(DESTDIR)$(UNITDIR)/hotshelf@.service'
	@if mkdir -p '$(DESTDIR)$(SBINDIR)' 2>/dev/null && [ -w '$(DESTDIR)$(SBINDIR)' ]; then \
		echo "ln -sfn $(BINDIR)/hotshelf $(DESTDIR)$(SBINDIR)/mount.fuse.hotshelf"; \
		ln -sfn '$(BINDIR)/hotshelf' '$(DESTDIR)$(SBINDIR)/mount.fuse.hotshelf'; \
	else \
		echo "$(SBINDIR) is not yours to write: no mount helper, so no fstab line and no mount -t fuse.hotshelf"; \
	fi
	@# Programs find a new library by the linker's cache. A package does that by itself.
	@if [ -z '$(DESTDIR)' ] && [ "$$(id -u)" = 0 ] && command -v ldconfig >/dev/null; then echo ldconfig; ldconfig; fi

uninstall: ## remove what install put there
	rm -f $(DESTDIR)$(BINDIR)/hotshelf
	rm -f $(DESTDIR)$(DATADIR)/man/man1/hotshelf.1 $(DESTDIR)$(DATADIR)/man/man1/hotshelf-*.1
	rm -f $(DESTDIR)$(DATADIR)/man/man5/hotshelf-mount.toml.5 $(DESTDIR)$(DATADIR)/man/man5/hotshelf-cache.toml.5
	rm -f $(DESTDIR)$(LIBDIR)/libhotshelf_sqlite.so $(DESTDIR)$(LIBDIR)/libhotshelf_nocache.so
	rm -f $(DESTDIR)$(LIBDIR)/libhotshelf.* $(DESTDIR)$(INCLUDEDIR)/hotshelf.h $(DESTDIR)$(LIBDIR)/pkgconfig/hotshelf.pc
	rm -f $(DESTDIR)$(INCLUDEDIR)/hotshelf_posix.h $(DESTDIR)$(INCLUDEDIR)/hotshelf_policy.h
	rm -f $(DESTDIR)$(DEBUGDIR)$(BINDIR)/hotshelf.debug $(DESTDIR)$(DEBUGDIR)$(LIBDIR)/libhotshelf*.debug
	rm -f $(DESTDIR)$(DATADIR)/man/man3/hotshelf.3
	rm -f $(DESTDIR)$(BASH_DIR)/hotshelf $(DESTDIR)$(ZSH_DIR)/_hotshelf $(DESTDIR)$(FISH_DIR)/hotshelf.fish
	rm -rf $(DESTDIR)$(DATADIR)/doc/hotshelf
	rm -f '$(DESTDIR)$(UNITDIR)/hotshelf@.service'
	@link='$(DESTDIR)$(SBINDIR)/mount.fuse.hotshelf'; \
	if [ "$$(readlink "$$link")" = '$(BINDIR)/hotshelf' ]; then echo "rm -f $$link"; rm -f "$$link"; fi

clean: ## remove what was built
	$(CARGO) clean
