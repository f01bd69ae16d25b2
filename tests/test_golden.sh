#!/bin/sh
# Vectors computed by other programs: NAME in tests/golden/vectors, and in ../shared/vectors if that exists and differs.
# disk-NAME is the model of NAME with the names of tensors that published folders have; its results are those of NAME.
# Usage: test_golden.sh CARRY SOURCE-TREE NAME
set -u
carry=$1
ours=$2/tests/golden/vectors/$3
theirs=$2/../shared/vectors/$3
checked=0
made=
trap '[ -z "$made" ] || rm -rf "$made"' EXIT
for path in "$ours" "$theirs"; do
    [ -e "$path" ] || continue
    if [ $checked = 1 ] && diff -rq "$ours" "$path" > /dev/null; then continue; fi
    case $3 in
    disk-*)
        results=${path%/*}/${3#disk-}
        made=$(mktemp -d)
        cp "$path"/* "${results%-vl}/expected.safetensors" "$made" || exit 1
        "$carry" check --golden "$made" || exit 1
        rm -rf "$made"
        ;;
    *) "$carry" check --golden "$path" || exit 1 ;;
    esac
    # The same model as other programs write it: a head that is called tied and is not; the older name of the embeddings.
    case $3 in
    lm-kimi_linear | lm-nemotron_h | lm-mamba2)
        made=$(mktemp -d)
        cp "$path"/* "$made" && chmod -R u+w "$made" || exit 1
        if [ "$3" = lm-mamba2 ]; then
            LC_ALL=C sed -i 's/"backbone\.embeddings\.weight":/"backbone.embedding.weight": /' "$made/model.safetensors"
            grep -q 'backbone\.embedding\.weight' "$made/model.safetensors" || exit 1
        else
            sed -i 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' "$made/config.json"
            grep -q '"tie_word_embeddings": true' "$made/config.json" || exit 1
        fi
        "$carry" check --golden "$made" || exit 1
        rm -rf "$made"
        ;;
    esac
    checked=1
done
if [ $checked = 0 ]; then
    echo "skipped: no golden vectors $3 in this clone"
    exit 77
fi
