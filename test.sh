#!/bin/sh
# Installs what is missing, builds Carry in every preset that this machine can, and runs every test. `./test.sh fast` runs
# the fast tier alone.
set -eu
cd "$(dirname "$0")"
tools/setup test
exec make --no-print-directory "check${1:+-$1}"
