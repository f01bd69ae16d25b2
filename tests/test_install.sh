#!/bin/sh
# The installed library as an outside project uses it: every example compiles and runs by pkg-config and by CMake, from
# C and from C++, and each header compiles alone. Usage: test_install.sh BUILD SOURCE CC CFLAGS
set -eu
build=$1
source=$2
cc=$3
flags=$4
case "$flags" in
    *-fsanitize=*) echo "skipped: a library under a sanitizer is not installed"; exit 77 ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$build" --prefix "$folder/usr" > "$folder/log"
for file in bin/carry include/carry/carry.h share/man/man1/carry.1; do
    [ -e "$folder/usr/$file" ] || { echo "FAILED: $file is not installed"; exit 1; }
done
library=$(dirname "$(find "$folder/usr" -name libcarry.a)")

# Experiments, cards and the demo's model are installed, and are found from a folder outside the source tree.
(
    cd "$folder"
    CARRY_WISDOM=none
    export CARRY_WISDOM
    if usr/bin/carry list verbs | grep -q '^cards '; then
        usr/bin/carry list experiments | grep -q '^044-matmulscan ' || { echo "FAILED: experiments are not found"; exit 1; }
        usr/bin/carry cards find backpressure | grep -q backpressure || { echo "FAILED: cards are not found"; exit 1; }
    fi
    usr/bin/carry stream --demo --chunks 1 | grep -qF "$folder/usr/share/carry/models/shapes" || {
        echo "FAILED: the demo's model is not found"; exit 1; }
)

for header in "$folder"/usr/include/carry/*.h; do
    printf '#include <carry/%s>\nint main(void) { return 0; }\n' "$(basename "$header")" > "$folder/alone.c"
    $cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$folder/usr/include" -fsyntax-only "$folder/alone.c"
    if command -v c++ > /dev/null; then
        cp "$folder/alone.c" "$folder/alone.cpp"
        c++ -std=c++17 -Wall -Wextra -Werror -I "$folder/usr/include" -fsyntax-only "$folder/alone.cpp"
    fi
done

PKG_CONFIG_PATH=$library/pkgconfig
export PKG_CONFIG_PATH
for example in "$source"/examples/*.c; do
    name=$(basename "$example" .c)
    # shellcheck disable=SC2046
    $cc "$example" $(pkg-config --cflags --libs carry) -o "$folder/$name-shared"
    LD_LIBRARY_PATH=$library "$folder/$name-shared" > "$folder/out"
    # shellcheck disable=SC2046
    $cc "$example" $(pkg-config --cflags carry) "$library/libcarry.a" $(pkg-config --libs --static carry | sed 's/-lcarry//') \
        -o "$folder/$name-static"
    "$folder/$name-static" > "$folder/out-static"
    tail -n 1 "$folder/out" > "$folder/last"
    tail -n 1 "$folder/out-static" | diff - "$folder/last"
done

mkdir "$folder/project"
cat > "$folder/project/CMakeLists.txt" <<'LISTS'
cmake_minimum_required(VERSION 3.25)
project(stranger C)
find_package(carry REQUIRED)
add_executable(stranger_shared main.c)
target_link_libraries(stranger_shared PRIVATE carry::carry)
add_executable(stranger_static main.c)
target_link_libraries(stranger_static PRIVATE carry::static)
LISTS
cp "$source/examples/01_scan.c" "$folder/project/main.c"
cmake -S "$folder/project" -B "$folder/project/build" -DCMAKE_PREFIX_PATH="$folder/usr" -DCMAKE_C_COMPILER="$cc" > "$folder/log"
cmake --build "$folder/project/build" >> "$folder/log"
"$folder/project/build/stranger_shared" > /dev/null
"$folder/project/build/stranger_static" > /dev/null
if strings "$library/libcarry.a" 2> /dev/null | grep -F "$source/"; then
    echo "FAILED: the library holds the path of the machine that built it"
    exit 1
fi
nm -D --defined-only "$library/libcarry.so" | awk '{print $3}' | grep -v '^carry_' && { echo "FAILED: foreign names exported"; exit 1; }
echo "the installed library is usable"
