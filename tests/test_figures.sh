#!/bin/sh
# tools/figures finds a figure in the run that its page names, and reports changed, new and lost ones.
# Usage: test_figures.sh PROJECT
set -u
if ! command -v python3 > /dev/null; then
    echo "skipped: python3 is not installed"
    exit 77
fi
project=$1
CARRY_FIGURES_ROOT=$(mktemp -d)
export CARRY_FIGURES_ROOT
trap 'rm -rf "$CARRY_FIGURES_ROOT"' EXIT
cd "$CARRY_FIGURES_ROOT" || exit 1
failures=0
page=docs/results/scan.md

fail() {
    echo "FAILED: $1"
    cat out
    failures=$((failures + 1))
}
figures() { python3 "$project/tools/figures" "$@" > out 2>&1; }
holds() { figures --check || fail "$1"; }
# reported TEXT WHAT: the check fails and its output has TEXT.
reported() { if figures --check || ! grep -q -e "$1" out; then fail "$2"; fi; }
# change FROM TO FILE
change() { sed "s/$1/$2/" "$3" > changed && mv changed "$3"; }

mkdir -p docs/results/runs
printf '{"problem": "scan", "median_s": 0.001234, "share": 0.52}\n{"problem": "tree", "median_s": 0.002468, "share": 0.26}\n' > lines
figures --store scan-cpu 'two cores; carry bench' < lines || fail "a run is stored"
grep -q '"text": "two cores; carry bench"' docs/results/runs/scan-cpu.json || fail "a stored run says what it is"
cat > README.md << 'END'
| command | Carry | others |
| --- | --- | --- |
| `carry bench scan:t64` | 1.23 ms | 3 ms (published) |
END
cat > $page << 'END'
# Scans

Question: how fast is a scan?

Method: measured on 2026-11-18 with gcc 12.2 at abcdef12 (`runs/scan-cpu.json`); the loop had 52 % of a copy, asked at most 90 %.

| problem | loop, ms | tree, ms | ratio |
| --- | --- | --- | --- |
| T = 64 | 1.234 | 2.47 | 2.0 |
END
figures --write || fail "stored figures are accepted"
holds "stored figures, a ratio and a figure of README hold"
figures
grep -q '| all | 5 | 4 | 1 | 0 |' out || fail "five figures: dates, versions, sizes, goals and published figures are left out"

cp $page whole.md
change 1.234 1.324 $page
reported 'scan.md:9: 1.324 ms .* is in no stored run' "a changed figure is reported"
figures --write && fail "a figure without a run is refused"
cp whole.md $page
change 1.234 2.468 $page
reported 'scan.md:9: 2.468 ms .* is new' "a figure that another number of the run gives is reported"
cp whole.md $page
change '1.23 ms' '1.32 ms' README.md
reported 'README.md:3: 1.32 ms' "a figure of README that no page states is reported"
change '1.32 ms' '1.23 ms' README.md
change 0.001234 0.001334 docs/results/runs/scan-cpu.json
reported '1.234 ms .* is in no stored run' "a changed run is reported"
change 0.001334 0.001234 docs/results/runs/scan-cpu.json
change 'runs\/scan-cpu' 'runs\/scan' $page
reported 'names runs/scan.json, which does not exist' "a missing run is reported"
cp whole.md $page
holds "the page as it was holds"

echo '| walk | 9.87 | | |' >> $page
reported 'scan.md:10: 9.87 ms .* is in no stored run' "a figure without a run is reported"
figures --write && fail "a new figure without a run is refused"
printf 'walk 9.87 ms\n' | figures --store walk-cpu 'two cores' || fail "output that is not JSON is stored"
change 'scan-cpu.json`' 'scan-cpu.json`, `runs\/walk-cpu.txt`' $page
reported 'scan.md:10: 9.87 ms .* is new' "a new figure is reported until the list is written"
figures --write || fail "the list is written"
holds "all figures are stored"
cp $page whole.md
echo 'The link has an assumed rate of 50 GB/s.' >> $page
holds "an assumed number is not a figure"
change 'an assumed rate' 'a rate' $page
reported '50 GB/s .* is in no stored run' "the same number without the word is reported"
cp whole.md $page
change '^Method: ' '' $page
reported "scan.md: expected a paragraph with 'Method: ...'" "a page without its method is reported"
cp whole.md $page
change 2026-11-18 today $page
reported 'scan.md: expected a date' "a page without a date is reported"
cp whole.md $page
change '| walk.*' '' $page
reported '9.87 ms is in .* but not on the page' "a figure that left its page is reported"
[ $failures = 0 ] && echo "ok"
exit $((failures > 0))
