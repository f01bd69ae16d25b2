#!/bin/sh
# The Python package's own tests, and flash-linear-attention's shapes, against the library of this build.
# Usage: test_python.sh LIBRARY SOURCE CFLAGS
set -eu
case "$3" in
    *-fsanitize=*) echo "skipped: Python does not load a library under a sanitizer"; exit 77 ;;
esac
python=""
for candidate in python3 /usr/bin/python3; do
    if $candidate -c 'import numpy, pytest' 2> /dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "skipped: no Python with numpy and pytest here"
    exit 77
fi
CARRY_LIBRARY=$1
CARRY_EMULATE_HOST=1 # an emulated GPU may read tensors of the CPU (tests/test_emulated.py)
export CARRY_LIBRARY CARRY_EMULATE_HOST
cd "$2/bindings/python"
# The wisdom of Python and of the program is one file (rough rates, which ctest asks for, are not saved).
program=$(dirname "$CARRY_LIBRARY")/carry
if [ -x "$program" ]; then
    cache=$(mktemp -d)
    env -u CARRY_WISDOM -u CARRY_CEILINGS XDG_CACHE_HOME="$cache" "$program" plan scan:dense:t64:n4 > /dev/null
    wanted=$(ls "$cache"/carry/wisdom-* | grep -v "\.lock$")
    found=$(env -u CARRY_WISDOM XDG_CACHE_HOME="$cache" $python -c 'from libcarry import _context; print(_context._wisdom().decode())')
    rm -rf "$cache"
    [ "$wanted" = "$found" ] || { echo "FAILED: the program's wisdom is $wanted, Python's $found"; exit 1; }
fi
$python -m pytest -q -p no:cacheprovider
$python fla_shapes.py --quick
