#!/bin/sh
# Does Carry compute right on this machine? Installs missing packages, builds Carry and runs the unit tests, the golden vectors
# and the tests of the command line: at most ten minutes on two cores.
#
#   ./test.sh        this
#   ./test.sh all    and sanitizers, clang with fuzzing, CUDA's compile, the other architecture under qemu, lint, the longest
#                    tests: 30 to 75 minutes on two cores, by machine and load
#   ./test.sh fast   less: without the tests that start programs
set -eu
cd "$(dirname "$0")"
case "${1:-}" in
    "") check=check-basic ;;
    all) check=check ;;
    fast) check=check-fast ;;
    *)
        echo "test.sh: '$1': expected all, fast or nothing" >&2
        exit 2
        ;;
esac
if [ "$check" = check ]; then tools/setup all; else tools/setup test; fi
exec make --no-print-directory $check
