#!/bin/sh
# The same weights in the layouts of diffusers, of Wan and of Self-Forcing stream the same frames, prompts go through
# the text encoder, and missing or additional tensors are refused by name. Usage: test_stream_model.sh CARRY SOURCE
set -u
carry=$1
source=$2
if ! command -v python3 > /dev/null; then
    echo "skipped: no python3"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
. "$source/tests/support.sh"
python3 "$source/tests/make_pipeline.py" . "$source/tests/golden/unigram/bytes" || exit 1
frames() {
    out=$1
    shift
    expect 0 'chunks' stream --device cpu --chunks 2 --out "$out" "$@"
}
frames a --model diffusers -p 'red circle'
frames b --model wan --text-encoder diffusers/text_encoder -p 'red circle'
frames c --model single/self_forcing.safetensors -p ' red   circle '
frames d --model diffusers -p 'a fox in the snow'
frames e --model diffusers -p ''
for other in b c; do
    diff -r a $other || fail "the frames of a and $other differ"
done
for other in d e; do
    diff -rq a $other > /dev/null && fail "the prompt of $other changes nothing"
done
refused 'no text_encoder beside it' stream --model wan --chunks 1
frames f --model wan --text-encoder none
printf '%10000s' x > long
refused '10000 bytes' stream --model diffusers --chunks 1 -p "$(tr ' ' x < long)"

# Video input, if this build has libjpeg.
wan='--device cpu --model wan --text-encoder none'
if "$carry" stream $wan --chunks 3 --record in.avi > out 2>&1; then
    expect 0 'in.avi: the video has ended' stream $wan --input in.avi --strength 0.5 --out video
    [ "$(ls video | wc -l)" = 9 ] || fail "of 9 frames $(ls video | wc -l) came out"
    head -c $(($(wc -c < in.avi) / 2)) in.avi > cut.avi
    expect 0 'the video ends in the middle of a frame' stream $wan --input cut.avi --record kept.avi
    [ "$(wc -c < kept.avi)" -gt 1000 ] || fail "what came out of a damaged video was not recorded"
    expect 2 'not an AVI file' stream $wan --input long
    expect 2 'there is no video' stream $wan --input nowhere.avi
    expect 2 'does not capture' stream $wan --input /dev/null
    refused '--strength 2' stream $wan --input in.avi --strength 2
    refused '--motion 1' stream $wan --input in.avi --motion 1
    expect 0 'in.avi: the video has ended' stream $wan --input in.avi --strength 0.5 --motion 0.5
else
    echo "video in: skipped, this build has no libjpeg"
fi

mv diffusers/tokenizer/spiece.model kept
expect 2 'has no tokenizer' stream --device cpu --model diffusers --chunks 1
head -c 5000 kept > diffusers/tokenizer/spiece.model
expect 2 'is damaged' stream --device cpu --model diffusers --chunks 1
mv kept diffusers/tokenizer/spiece.model
sed -i 's/"d_model": 64/"d_model": 32/' diffusers/text_encoder/config.json
expect 2 'makes 32 numbers a token, and the model takes 64' stream --device cpu --model diffusers --chunks 1
sed -i 's/"num_layers": 2/"num_layers": 3/' wan/config.json
expect 2 'has no tensor blocks.2.modulation' stream --device cpu --model wan --text-encoder none --chunks 1
sed -i 's/"num_layers": 3/"num_layers": 1/' wan/config.json
expect 2 'the tensor blocks.1.' stream --device cpu --model wan --text-encoder none --chunks 1
[ $failures = 0 ] && echo "all as expected"
exit $failures
