#!/bin/sh
# The page in a headless Chromium: test_page.sh CARRY STREAM_PAGE. Skipped aloud where Chromium or Python's websocket
# module is missing. STREAM_PAGE draws a stream of its own; where CARRY can serve one, its page is tried too.
set -u
carry=$1
stream_page=$2
here=$(dirname "$0")
python=
for candidate in python3 /usr/bin/python3; do # a Python of one's own may lack the system's modules
    if "$candidate" -c 'import websocket' 2> /dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "skipped: Python's websocket module is not here"
    exit 77
fi
export PYTHONDONTWRITEBYTECODE=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$python" "$here/page_test.py" --record "$folder" -- "$stream_page" --record-to "$folder" --seconds 240
code=$?
if [ $code != 0 ]; then exit $code; fi
"$python" "$here/page_test.py" --token 'a+b/c' --brief -- "$stream_page" --token 'a+b/c' --seconds 240 || exit 1
