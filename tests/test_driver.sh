#!/bin/sh
# A driver that is older than the toolkit is reported with both versions. The test runs carry with a library that
# imitates such a driver. Usage: test_driver.sh CARRY CC. Skipped where the build has no CUDA.
set -eu
carry=$1
cc=$2
export ASAN_OPTIONS=detect_leaks=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/driver.c" << 'SOURCE'
int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) {
    *version = 9020;
    return 0;
}
SOURCE
"$cc" -shared -fPIC -o "$work/libcuda.so.1" "$work/driver.c"
LD_LIBRARY_PATH="$work${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$carry" list devices > "$work/out" 2> "$work/err"
if ! grep -q cuda "$work/out"; then
    echo "skipped: there is no CUDA in this build"
    exit 77
fi
cat "$work/out"
grep -q '^-  cuda: the driver is for CUDA 9\.2 and this library was built with CUDA [0-9.]*: install a newer driver$' "$work/out"
grep -q '^0  cpu' "$work/out"
test ! -s "$work/err"
LD_LIBRARY_PATH="$work" "$carry" list devices --json | grep -q '"kind": "absence".*CUDA 9\.2'
