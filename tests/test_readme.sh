#!/bin/sh
# Checks README.md and docs/library.md: their sh, c and python blocks run unchanged, links between documents lead to
# existing files, and the support matrix equals the program's tables. The man page lists every verb, problem family and
# long option. Usage: test_readme.sh CARRY LIBRARY PROJECT CC CFLAGS
set -u
carry=$1
library=$2
project=$3
cc=$4
flags=$5
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=none
export CARRY_WISDOM
failures=0

fail() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}

# page LANGUAGE: the page that has the one fenced block of that language.
page() { if [ "$1" = c ]; then echo "$project/docs/library.md"; else echo "$project/README.md"; fi; }
block() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/p" "$(page "$1")" | sed '1d;$d'; }

for language in sh c python; do
    if [ "$(grep -c "^\`\`\`$language\$" "$(page $language)")" != 1 ]; then fail "$(page $language) does not have one block of $language"; fi
    lines=$(block $language | wc -l)
    if [ "$lines" -lt 8 ] || [ "$lines" -gt 16 ]; then fail "the block of $language has $lines lines, about ten are wanted"; fi
done

# Links inside the project, here and in the pages of docs/.
for page in "$project"/README.md "$project"/HACKING.md "$project"/docs/*.md "$project"/docs/results/*.md "$project"/docs/attempts/*.md; do
    grep -o '](\([^)#]*\))' "$page" | sed 's/^](//; s/)$//' | grep -v '^https*:' | while read -r link; do
        [ -e "$(dirname "$page")/$link" ] || echo "$page: $link"
    done
done > "$folder/broken"
if [ -s "$folder/broken" ]; then
    cat "$folder/broken"
    fail "links of the documents lead nowhere"
fi

verbs=$("$carry" list verbs | cut -d ' ' -f 1 | sort -u | tr '\n' ' ')
case "$verbs" in
    *cards*train*) whole=yes ;;
    *) whole= ;;
esac

# The matrix: the program's tables, in a build that has every verb.
if [ -n "$whole" ]; then
    "$project/tools/support-matrix" "$carry" --check || fail "the support matrix"
else
    echo "skipped: the support matrix, since this build lacks verbs"
fi

# The man page has every verb, problem family and long option of this build.
sed 's/\\-/-/g; s/\\f[BIRP]//g' "$project/docs/man/carry.1" > "$folder/man"
"$carry" list verbs --json | sed 's/.*"name": "\([^"]*\)".*/\1/' > "$folder/verbs"
while read -r verb; do
    grep -q -w -e "$verb" "$folder/man" || fail "the man page has no verb $verb"
    # shellcheck disable=SC2086
    for option in $("$carry" $verb --help < /dev/null | sed -n 's/^ *\(-[a-zA-Z], \)\{0,1\}\(--[a-z0-9-]*\).*/\2/p'); do
        grep -q -e "$option\>" "$folder/man" || fail "the man page has no $option of carry $verb"
    done
done < "$folder/verbs"
for family in $("$carry" list problems | cut -d ' ' -f 1); do
    sed -n '/^.SH PROBLEMS/,/^.SH OPTIONS/p' "$folder/man" | grep -q -w -e "$family" || fail "the man page has no problem $family"
done

# The CPU's part of the matrix is right: each type that it lists passes a check, forward and backward.
"$carry" list problems --json > "$folder/problems"
# works FAMILY COLUMN PROBLEM-WITH-@: checks the problem for each type of that column.
works() {
    types=$(sed -n "s/.*\"name\": \"$1\".*\"$2\": \"\([^\"]*\)\".*/\1/p" "$folder/problems")
    [ -n "$types" ] || fail "the table has no $2 types for $1"
    for type in $types; do
        problem=$(echo "$3" | sed "s/@/$type/")
        if ! "$carry" check "$problem" > "$folder/out" 2>&1 || grep -q ' [1-9][0-9]* wrong' "$folder/out"; then
            cat "$folder/out"
            fail "carry check $problem, which the support matrix promises"
        fi
    done
}
works scan cpu scan:dense:@:t33:n4:w3
works scan cpu_backward scan:diagonal:@:t33:n4:w3:backward
works delta cpu delta:@:t33:h2:k8:v8
works delta cpu_backward delta:@:t33:h2:k8:v8:backward
works matmul cpu matmul:@:b3:n8
works allscan cpu allscan:wy:@:h2:k8:v8:p3
works attention cpu attention:@:h2:q9:kv17:d16:bias
works attention cpu_backward attention:@:h2:q9:kv17:d16:backward

# C: compiled against the headers and the library of this build.
block c > "$folder/scan.c"
# shellcheck disable=SC2086
if $cc $flags -Wall -Wextra -Werror -I "$project/include" "$folder/scan.c" "$library" -Wl,-rpath,"$(dirname "$library")" -o "$folder/scan"; then
    "$folder/scan" > "$folder/out" || fail "the program of the C block"
    grep -q '^h\[999\] = 2 ' "$folder/out" || { cat "$folder/out"; fail "the C block's last value is not 2"; }
else
    fail "the C block does not compile"
fi

# Shell: in a folder with the contents of a clone, with carry on PATH. -e: ends at the first line that fails.
mkdir "$folder/clone" "$folder/bin"
for name in README.md HACKING.md experiments models library docs examples; do ln -s "$project/$name" "$folder/clone/$name"; done
ln -s "$carry" "$folder/bin/carry"
case "$flags" in
    *-fsanitize=*) echo "skipped: the shell block under a sanitizer, where its training takes minutes" ;;
    *)
        if [ -z "$whole" ]; then
            echo "skipped: the shell block, since this build lacks verbs"
        else
            block sh > "$folder/block.sh"
            if ! (cd "$folder/clone" && PATH=$folder/bin:$PATH sh -eu "$folder/block.sh") > "$folder/out" 2>&1 < /dev/null; then
                tail -n 20 "$folder/out"
                fail "the shell block"
            fi
            [ -e "$folder/clone/frames/frame-000000.ppm" ] || fail "the shell block left no frames"
        fi
        ;;
esac

# Python: the package of the tree, over the library of this build.
block python > "$folder/block.py"
python=""
for candidate in python3 /usr/bin/python3; do
    if [ -z "$python" ] && $candidate -c 'import numpy' 2> /dev/null; then python=$candidate; fi
done
case "$flags" in *-fsanitize=*) python="" ;; esac
if [ ! -d "$project/bindings/python/libcarry" ]; then
    echo "skipped: the Python block, since bindings/python/libcarry is not here"
elif [ -z "$python" ]; then
    echo "skipped: the Python block: no Python with numpy here, or a sanitizer"
else
    (cd "$folder" && CARRY_LIBRARY=$library PYTHONPATH=$project/bindings/python PYTHONDONTWRITEBYTECODE=1 $python block.py) > "$folder/out" 2>&1 ||
        { cat "$folder/out"; fail "the Python block"; }
fi

if [ $failures -gt 0 ]; then
    echo "$failures failures"
    exit 1
fi
echo "README.md: as it says"
