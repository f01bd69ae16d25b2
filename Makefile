# The front door. Everything here is a CMake preset or a short script; `make` prints this help.
PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= 2

.PHONY: help demo test check check-basic check-fast check-packages packages claims simulate attack format lint install clean

help:
	@echo "make demo        build Carry, demonstrate it, and write a report (./demo.sh)"
	@echo "make test        install missing packages, build, test that this machine computes right (./test.sh; at most 10 minutes)"
	@echo "make check-basic the same without installing anything"
	@echo "make check       every preset and every test: sanitizers, clang, CUDA, qemu, lint (./test.sh all installs first; 30 to 75 minutes)"
	@echo "make check-fast  one build and its quick tests"
	@echo "make format      rewrite the sources in the project's format"
	@echo "make lint        check the format, include layers, clang-tidy and cppcheck (make check uses a shallower analyzer)"
	@echo "make claims      measure what the README claims, and fail if a claim does not hold (minutes, on a quiet machine)"
	@echo "make simulate    run All-Scan on simulated clusters of up to 1024 ranks (SimGrid; minutes)"
	@echo "make attack      kill ranks, burst WebSockets, damage files (tools/attack; some forty minutes, builds dev and asan)"
	@echo "make install     install headers, libraries, program and man page to PREFIX ($(PREFIX))"
	@echo "make packages    build Debian packages in build/package: library, dev, program, Python"
	@echo "make check-packages  install and use the packages and the wheel on a bare Debian (debootstrap, root; minutes)"
	@echo "make clean       remove build/"
	@echo
	@echo "Presets for cmake --preset: dev release asan ubsan tsan bare clang cuda emulate (docs/testing.md)"

demo:
	@./demo.sh

test:
	@./test.sh

check:
	@JOBS=$(JOBS) tools/check

check-basic:
	@TIER=basic JOBS=$(JOBS) tools/check dev

check-fast:
	@TIER=fast JOBS=$(JOBS) tools/check dev

claims:
	@tools/claims

simulate:
	@tools/simulate

attack:
	cmake --preset dev && cmake --build --preset dev -j $(JOBS) --target carry
	cmake --preset asan && cmake --build --preset asan -j $(JOBS) --target carry
	tools/attack ranks build/dev/carry
	tools/attack soak build/dev/carry
	tools/attack files build/asan/carry

format:
	clang-format -i $$(tools/lint sources)

lint:
	@tools/lint

install:
	cmake --preset release -DCARRY_TESTS=OFF -DCMAKE_INSTALL_PREFIX=$(PREFIX)
	cmake --build --preset release -j $(JOBS)
	DESTDIR=$(DESTDIR) cmake --install build/release
	@tools/after-install "$(DESTDIR)" "$(PREFIX)"

packages:
	@JOBS=$(JOBS) tools/package

check-packages: packages
	@sh tests/test_packages.sh build/package
	@sh tests/test_containers.sh || [ $$? = 77 ]

clean:
	rm -rf build
