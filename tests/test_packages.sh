#!/bin/sh
# The Debian packages on a bare Debian: installed by apt, the program run, a C program compiled by pkg-config and by CMake, the
# Python package imported; then the wheel in a virtual environment. Needs root, debootstrap and a mirror; takes minutes, so it is
# not among the tests of ctest: make check-packages. Usage: test_packages.sh FOLDER-OF-PACKAGES
set -u
packages=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
skip() {
    echo "skipped: $*"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "packages are installed by root only"
command -v debootstrap > /dev/null || skip "debootstrap is not here (apt install debootstrap)"
ls "$packages"/*.deb > /dev/null 2>&1 || skip "no packages in $packages (make packages)"
if [ -z "${CARRY_WHEEL:-}" ] && python3 -m pip wheel -q --no-deps -w "$packages/wheel" "$source/bindings/python" 2> /dev/null; then
    CARRY_WHEEL=$(ls -t "$packages"/wheel/libcarry-*.whl | head -n 1)
fi
if [ -n "${CARRY_WHEEL:-}" ] && command -v auditwheel > /dev/null; then
    tag=$(basename "$CARRY_WHEEL" .whl | sed 's/.*-none-//')
    auditwheel show "$CARRY_WHEEL" | tr '\n' ' ' | grep -q "following platform tag: \"$tag\"" || {
        echo "FAILED: auditwheel does not agree that the wheel is $tag"; exit 1; }
    echo "auditwheel agrees: $tag"
else
    echo "skipped: auditwheel or the wheel is not here"
fi
. /etc/os-release
root=${CARRY_BARE_ROOT:-$(mktemp -d)/root} # one that is there is used, and kept
if [ ! -e "$root/usr/bin/apt-get" ]; then
    debootstrap --variant=minbase "${VERSION_CODENAME:-bookworm}" "$root" > "$packages/debootstrap.log" 2>&1 ||
        skip "debootstrap found no mirror: $(tail -n 1 "$packages/debootstrap.log")"
fi
leave() {
    umount "$root/proc" 2> /dev/null
    [ -n "${CARRY_BARE_ROOT:-}" ] || rm -rf --one-file-system "$(dirname "$root")"
}
trap leave EXIT
mount -t proc proc "$root/proc" 2> /dev/null # /proc/self/exe says where the program is
cp /etc/resolv.conf "$root/etc/" 2> /dev/null
cp /etc/apt/apt.conf.d/*proxy* "$root/etc/apt/apt.conf.d/" 2> /dev/null
rm -rf "$root/packages"
mkdir "$root/packages"
cp "$packages"/*.deb "$root/packages"
cp -r "$source/examples" "$root/packages/examples"
[ -z "${CARRY_WHEEL:-}" ] || cp "$CARRY_WHEEL" "$root/packages"
cat > "$root/packages/try.sh" <<'TRY'
set -eu
export DEBIAN_FRONTEND=noninteractive CARRY_WISDOM=none
apt-get update -q > /tmp/log 2>&1
apt-get install -y -q --no-install-recommends /packages/*.deb >> /tmp/log 2>&1 || { tail /tmp/log; exit 1; }
cd /tmp
carry --version
carry check scan:dense:t64:n8 delta:t64:h2 | tail -n 1
carry list experiments | grep -q ^044-matmulscan
carry cards find backpressure > /dev/null
carry stream --demo --chunks 1 | head -n 1
python3 -c 'import numpy as np, libcarry
h = libcarry.scan(np.full((1, 50, 1), 0.5, np.float32), np.ones((1, 50, 1, 1), np.float32))
assert abs(h[0, -1, 0, 0] - 2) < 1e-6, h
print("python3-libcarry", libcarry.__version__, libcarry.plan("scan:dense:t64:n8"))'
apt-get install -y -q --no-install-recommends gcc libc6-dev pkg-config cmake make python3-venv >> /tmp/log 2>&1 || { tail /tmp/log; exit 1; }
for example in /packages/examples/*.c; do
    gcc "$example" $(pkg-config --cflags --libs carry) -o example && ./example > out || { echo "$example fails"; exit 1; }
done
printf 'cmake_minimum_required(VERSION 3.18)\nproject(user C)\nfind_package(carry REQUIRED)\nadd_executable(user /packages/examples/01_scan.c)\ntarget_link_libraries(user PRIVATE carry::carry)\n' > CMakeLists.txt
cmake -B user . > log && cmake --build user >> log && user/user > /dev/null || { cat log; exit 1; }
echo "examples compile and run, by pkg-config and by CMake"
if ls /packages/*.whl > /dev/null 2>&1; then
    apt-get remove -y -q python3-libcarry libcarry0.1 >> /tmp/log 2>&1
    python3 -m venv --system-site-packages /tmp/venv && /tmp/venv/bin/pip install -q --no-index /packages/*.whl # numpy is Debian's
    /tmp/venv/bin/python -c 'import libcarry; print("the wheel,", libcarry.plan("delta:t64:h2"))'
fi
TRY
if chroot "$root" sh /packages/try.sh; then
    echo "the packages work on a bare ${PRETTY_NAME:-Debian}"
else
    echo "FAILED: the packages on a bare ${PRETTY_NAME:-Debian}"
    exit 1
fi
