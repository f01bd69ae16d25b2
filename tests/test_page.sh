#!/bin/sh
# The page in a headless Chromium: test_page.sh CARRY STREAM_PAGE. Skipped, with the reason, where Chromium or Python's
# websocket module is missing. STREAM_PAGE draws its own stream; if CARRY can serve one, its page is tested, too.
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

"$python" "$here/page_test.py" --record "$folder" -- "$stream_page" --record-to "$folder" --seconds 1200
code=$?
if [ $code != 0 ]; then exit $code; fi
"$python" "$here/page_test.py" --token 'a+b/c+0123456789' --brief -- "$stream_page" --token 'a+b/c+0123456789' --seconds 1200 || exit 1

# A stream of the pipeline itself: weights are random, so the contents of pictures are not tested.
if "$carry" stream --help 2> /dev/null | grep -q -e --serve; then
    mkdir "$folder/pipeline"
    "$python" "$here/page_test.py" --brief --record "$folder/pipeline" -- "$carry" --ranks 2 stream --config shapes \
        --serve --port 0 --record-to "$folder/pipeline" || exit 1
else
    echo "skipped: this carry serves no streams"
fi
