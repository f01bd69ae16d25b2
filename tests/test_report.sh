#!/bin/sh
# Reports as a person and a browser see them. Usage: test_report.sh PATH-OF-CARRY PATH-OF-TEST_LAB_REPORT FOLDER. FOLDER
# keeps the pages and the screenshots.
set -u
carry=$1
maker=$2
kept=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
CARRY_WISDOM=none
CARRY_STORE=$folder/store.db
export CARRY_WISDOM CARRY_STORE
ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export ASAN_OPTIONS
failures=0
skipped=

fail() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# expect CODE WORDS ARGUMENTS...
expect() {
    code=$1
    words=$2
    shift 2
    "$carry" report "$@" > "$folder/out" 2> "$folder/err" < /dev/null
    got=$?
    if [ $got != "$code" ] || ! cat "$folder/out" "$folder/err" | grep -qF -e "$words"; then
        fail "carry report $*: exit $got (expected $code), expected to read '$words', read:"
        head -n 5 "$folder/out" "$folder/err"
    fi
}

# refused WORDS ARGUMENTS...: exit 2, exactly one line on standard error, nothing on standard output.
refused() {
    words=$1
    expect 2 "$@"
    if [ "$(wc -l < "$folder/err")" != 1 ] || [ -s "$folder/out" ]; then
        fail "refusal for '$words' is not one error message on standard error alone:"
        cat "$folder/out" "$folder/err"
    fi
}

mkdir -p "$kept"
"$maker" --fill "$CARRY_STORE" || exit 1

# Pages.
expect 0 "report.html" 1 -o "$kept/report.html"
expect 0 '"runs": 3, "plots": ' 1 2 "cyclic reduction, slower" -o "$kept/compared.html" --json
expect 0 "curves.html" small smaller --output="$kept/curves.html"
expect 0 "hostile.html" 6 -o "$kept/hostile.html"
expect 0 "deep.html" last -o "$folder/new/folder/deep.html" --store "$CARRY_STORE"
expect 0 "1 run" 1 -o "$folder/based.html" --baseline sequential
# A JSON parser accepts only UTF-8; a path may have any bytes.
expect 0 "$(printf '/a\357\277\275b\303\251\357\277\275.html", "runs"')" 1 -o "$folder/$(printf 'a\377b\303\251\303').html" --json

# Bad arguments.
refused "report needs a run"
refused "77" 77 -o "$folder/no.html"
refused "there is no run store" 1 --store "$folder/none/of/this" -o "$folder/no.html"
[ ! -e "$folder/none" ] || fail "a store was made by looking for it"
refused "nobody" nobody -o "$folder/no.html"
refused "which is given twice" 1 "cyclic reduction" 1 -o "$folder/no.html"
refused "no run of this report has a method 'quickest'" 1 --baseline quickest -o "$folder/no.html"
refused "cannot be written" 1 -o "$CARRY_STORE/below/a/file.html"
refused "is not a regular file" 1 -o "$folder"
printf 'not a store, not at all, although it is long enough to have a header' > "$folder/junk.db"
refused "junk.db" 1 --store "$folder/junk.db" -o "$folder/no.html"
[ -e "$folder/no.html" ] && fail "a refused report was written"
printf 'old' > "$folder/full.html"
# A full disk: no file may grow beyond a few blocks, so the page does not fit.
(
    trap '' XFSZ
    ulimit -f 8
    "$carry" report 1 -o "$folder/full.html" > "$folder/out" 2> "$folder/err"
)
[ $? = 2 ] || fail "a page that does not fit on the disk: $(cat "$folder/out" "$folder/err")"
[ "$(cat "$folder/full.html")" = old ] || fail "a full disk cost the old report"
[ "$(ls "$folder" | grep -c 'full.html')" = 1 ] || fail "a full disk left a part of a page"

# Without gnuplot: tables, and a message.
PATH=$folder "$carry" report 1 -o "$folder/bare.html" --json > "$folder/out" 2> "$folder/err"
[ $? = 0 ] || fail "a report without gnuplot: $(cat "$folder/err")"
grep -q '"plots": 0' "$folder/out" || fail "a report without gnuplot has plots: $(cat "$folder/out")"
grep -q 'no plots: gnuplot is not installed here' "$folder/err" || fail "nothing was said of gnuplot: $(cat "$folder/err")"
grep -q 'Plots are missing' "$folder/bare.html" || fail "the page does not say that plots are missing"

# Self-contained: no external address, no script, every id once.
for page in report compared curves hostile; do
    file=$kept/$page.html
    grep -qiE '<script|src=|url\(|@import|https?:' "$file" && fail "$page.html asks for something outside itself"
    twice=$(grep -oE " id=['\"][^'\"]*" "$file" | tr -d "'\"" | sort | uniq -d | head -n 1)
    [ -z "$twice" ] || fail "$page.html has an id twice:$twice"
done

# In a browser.
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -z "$browser" ]; then
    skipped="chromium is not here: the pages were not opened"
elif ! command -v gnuplot > /dev/null; then
    skipped="gnuplot is not here: there are no plots to look at"
fi
if [ -n "$skipped" ]; then
    echo "skipped: $skipped"
    [ $failures = 0 ] && exit 77
    exit 1
fi

# browse ARGUMENTS...: with a separate profile, which is removed with the folder.
browse() {
    timeout -k 5 300 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
        --user-data-dir="$folder/profile" --hide-scrollbars --enable-logging=stderr --v=0 "$@"
}

# framed PAGE WIDTH HEIGHT: uses a frame, since a window cannot be narrower than 500.
framed() {
    printf '<!DOCTYPE html><meta charset="utf-8"><style>html,body{margin:0}iframe{border:0;display:block}</style>' > "$folder/frame.html"
    printf '<iframe src="file://%s" width="%s" height="%s"></iframe>\n' "$1" "$2" "$3" >> "$folder/frame.html"
}

# shot NAME PAGE WIDTH HEIGHT ARGUMENTS...: a screenshot, and nothing on the console.
shot() {
    name=$1
    page=$2
    width=$3
    height=$4
    shift 4
    framed "$kept/$page.html" "$width" "$height"
    rm -f "$kept/$name.png"
    browse --window-size="$width,$height" "$@" --screenshot="$kept/$name.png" "file://$folder/frame.html" > "$folder/log" 2>&1
    [ -s "$kept/$name.png" ] || fail "no screenshot $name.png: $(tail -n 3 "$folder/log")"
    grep -a 'CONSOLE' "$folder/log" && fail "$page.html wrote on the console"
}

shot desk-light report 1200 2400
shot desk-dark report 1200 2400 --blink-settings=preferredColorScheme=0
shot phone-light report 390 2400
shot phone-dark report 390 2400 --blink-settings=preferredColorScheme=0
shot phone-hostile hostile 390 1600
cmp -s "$kept/desk-light.png" "$kept/desk-dark.png" && fail "dark looks like light"

# measured PAGE WIDTH: measured by a script in a copy of the page, whose policy otherwise forbids scripts.
measured() {
    sed '/http-equiv="Content-Security-Policy"/d; /^img-src data:/d; s|</body>|<script src="measure.js"></script></body>|' \
        "$kept/$1.html" > "$folder/copy.html"
    framed "$folder/copy.html" "$2" 2000
    sed 's|<iframe|<script>addEventListener("message",e=>{document.title=e.data;document.documentElement.dataset.found=e.data})</script><iframe|' \
        "$folder/frame.html" > "$folder/outer.html"
    browse --window-size=1200,2000 --virtual-time-budget=5000 --dump-dom "file://$folder/outer.html" 2> "$folder/log" |
        grep -o 'data-found="[^"]*"'
}
cat > "$folder/measure.js" << 'END'
const plots = [...document.querySelectorAll('figure > svg')];
const seen = plots.filter(p => {
    const box = p.getBoundingClientRect();
    const lines = [...p.querySelectorAll('path, use')].filter(l => { const b = l.getBoundingClientRect(); return b.width + b.height > 2; });
    const paint = [...p.querySelectorAll('[stroke^="var(--s"], [color^="var(--s"]')];
    const coloured = paint.every(l => getComputedStyle(l).stroke !== 'none' || getComputedStyle(l).color !== '');
    return box.width > 200 && box.height > 80 && lines.length > 5 && paint.length > 0 && coloured;
});
const wide = document.documentElement.scrollWidth > window.innerWidth + 1;
const type = parseFloat(getComputedStyle(document.body).fontSize);
parent.postMessage(`plots ${plots.length} seen ${seen.length} wide ${wide} type ${type >= 16}`, '*');
END
for what in report:10:1200 report:10:390 compared:30:390 curves:2:390; do
    page=${what%%:*}
    width=${what##*:}
    plots=${what#*:}
    plots=${plots%:*}
    found=$(measured "$page" "$width")
    [ "$found" = "data-found=\"plots $plots seen $plots wide false type true\"" ] ||
        fail "$page.html at $width: expected $plots visible plots in the page's width, found: $found $(tail -n 2 "$folder/log")"
done

browse --no-pdf-header-footer --print-to-pdf="$kept/report.pdf" "file://$kept/report.html" > "$folder/log" 2>&1
[ -s "$kept/report.pdf" ] || fail "the page cannot be printed: $(tail -n 3 "$folder/log")"

[ $failures = 0 ] && echo "reports: pages and screenshots are in $kept"
exit $((failures > 0))
