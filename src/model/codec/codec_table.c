/* The only list of kinds of codecs. The first is used if there is no folder. */
#include "model/codec/codec_kind.h"

extern const carry_codec_kind carry_codec_dct, carry_codec_tae, carry_codec_wan;

static const carry_codec_kind *const table[] = {&carry_codec_dct, &carry_codec_tae, &carry_codec_wan};

const carry_codec_kind *carry_codec_kind_at(int index) {
    return index < 0 || index >= (int)(sizeof table / sizeof table[0]) ? NULL : table[index];
}

const char *carry_codec_kind_name(int index, const char **about) {
    const carry_codec_kind *kind = carry_codec_kind_at(index);
    if (about != NULL) {
        *about = kind != NULL ? kind->about : NULL;
    }
    return kind != NULL ? kind->name : NULL;
}
