#!/bin/sh
# The systemd unit, and the image of docker/cpu.Dockerfile with carry serve as its command: it is built and generates a
# text. Takes minutes, so it is not among the tests of ctest: make check-packages. Usage: test_containers.sh
set -u
source=$(cd "$(dirname "$0")/.." && pwd)
failed=0
if command -v systemd-analyze > /dev/null; then
    folder=$(mktemp -d)
    program=$(command -v true)
    sed "s,/usr/bin/carry,$program," "$source/docker/carry-serve.service" > "$folder/carry-serve.service"
    said=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$folder/carry-serve.service" 2>&1 | grep carry-serve)
    rm -rf "$folder"
    [ -z "$said" ] && echo "systemd accepts docker/carry-serve.service" || { echo "FAILED: $said"; failed=1; }
else
    echo "skipped: systemd-analyze is not installed"
fi
if ! command -v docker > /dev/null || ! docker info > /dev/null 2>&1; then
    echo "skipped: docker is not installed, or not running"
    [ $failed = 0 ] && exit 77 || exit 1
fi
image=carry-test-$$
docker build -q -f "$source/docker/cpu.Dockerfile" -t "$image" "$source" > /dev/null || { echo "FAILED: the image is not built"; exit 1; }
container=$(docker run -d -p 127.0.0.1::8080 "$image" serve tiny --random --host 0.0.0.0 --open --sequences 2)
trap 'docker rm -f "$container" > /dev/null; docker rmi -f "$image" > /dev/null' EXIT
address=$(docker port "$container" 8080 | head -n 1)
tries=0
until curl -sf "http://$address/health" > /dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || { echo "FAILED: no server at $address"; docker logs "$container"; exit 1; }
    sleep 0.1
done
curl -sf "http://$address/v1/completions" -d '{"prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": true}' | grep -q '"completion_tokens":4' ||
    { echo "FAILED: no text"; failed=1; }
docker stop -t 60 "$container" > /dev/null
[ "$(docker inspect -f '{{.State.ExitCode}}' "$container")" = 0 ] || { echo "FAILED: the server did not end with 0"; failed=1; }
[ $failed = 0 ] && echo "the image serves"
exit $failed
