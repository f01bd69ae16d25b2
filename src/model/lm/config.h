/* The configuration of a language model, and its config.json.

   A configuration has the fields that all families share, the parts of every layer with their options (options.h), and
   a block with the family's own fields. Each family (families/family.h) lists the keys of its config.json, with the
   defaults of the library it comes from, and translates them into parts and options.

   Keys that change nothing here (kernels, caches) are ignored; unknown keys produce one warning; a value that is not
   supported is refused by name, before any weight is read. */
#ifndef CARRY_MODEL_CONFIG_H
#define CARRY_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/json.h"
#include "core/json_write.h"
#include "model/lm/options.h"

#define CARRY_LM_MAX_LAYERS 4096
#define CARRY_LM_MAX_WIDTH ((int64_t)1 << 24)
#define CARRY_LM_OWN 128 /* bytes reserved for a family's own fields */

struct carry_lm_family;

typedef struct carry_lm_config {
    const struct carry_lm_family *family;
    int64_t vocab_size, hidden_size, num_hidden_layers;
    bool tie_word_embeddings;
    bool norm_plus_one; /* norms multiply by 1 + w instead of w */
    double norm_eps, initializer_range;
    double embedding_factor, residual_factor; /* factors on the embeddings, and on the output that each layer adds to h;
                                                 0 means 1 */
    double logits_divisor;                    /* 0 means 1 */
    int64_t max_position_embeddings;
    int64_t bos_token_id, eos_token_id, pad_token_id; /* -1: none */

    /* The parts of each layer, and their options. */
    unsigned char mixer[CARRY_LM_MAX_LAYERS];       /* CARRY_LM_MIXER_ of mixers/mixer.h */
    unsigned char feedforward[CARRY_LM_MAX_LAYERS]; /* CARRY_LM_FEEDFORWARD_ of feedforward/feedforward.h */
    bool norms_after[CARRY_LM_MAX_LAYERS];          /* h += norm(f(h)); otherwise h += f(norm(h)) */
    CARRY_LM_OPTIONS;                               /* options.h: delta, attention, swiglu and others */

    bool has_attention; /* derived: some layer has a state that grows with the tokens read */
    _Alignas(8) unsigned char own[CARRY_LM_OWN];
} carry_lm_config;

/* How the value of a key is read. */
typedef enum carry_lm_form {
    CARRY_LM_SIZE,         /* a whole number */
    CARRY_LM_SIZE_OR_NULL, /* null: 0 */
    CARRY_LM_COUNT,        /* a whole number, at least 0; null: 0 */
    CARRY_LM_NUMBER,
    CARRY_LM_NUMBER_OR_NULL, /* null: 0 */
    CARRY_LM_TRUTH,
    CARRY_LM_TRUTH_IF_FALSE, /* written only if false */
    CARRY_LM_TOKEN,          /* a whole number, null (-1), or a list, of which the first entry is used */
    CARRY_LM_ACTIVATION,     /* activation of q and k */
    CARRY_LM_OTHER,          /* read and written by functions */
    CARRY_LM_READ_SIZE,      /* like SIZE and NUMBER, but not written: another key has the value */
    CARRY_LM_READ_NUMBER,
    CARRY_LM_READ_OVER,   /* ignored */
    CARRY_LM_MUST_BE_OFF, /* must be null, false, 0 or an empty list */
    CARRY_LM_MUST_BE_ON,  /* null or true */
    CARRY_LM_MUST_BE_SILU,
    CARRY_LM_MUST_BE_L2,
} carry_lm_form;

/* A config.json that is being read. */
typedef struct carry_lm_source {
    carry_ctx *ctx;
    const char *name; /* for messages */
    carry_lm_config *config;
} carry_lm_source;

/* A key of config.json. A key is written if its form comes before CARRY_LM_READ_SIZE or if it has a `text`. */
typedef struct carry_lm_key {
    const char *key;
    carry_lm_form form;
    size_t offset; /* of its field in carry_lm_config */
    carry_status (*read)(const carry_lm_source *source, const carry_json *node);
    void (*write)(carry_json_text *text, const carry_lm_config *config); /* for OTHER; NULL: not written */
    const char *text;                                                    /* the value that is written */
} carry_lm_key;

/* Entries of a list of keys: KEY has a field of carry_lm_config, OWN_KEY a field of the family's own struct, WORD has
   no field, and WRITTEN is always written with the same value. */
#define CARRY_LM_KEY(key, field, form) \
    { key, CARRY_LM_##form, offsetof(carry_lm_config, field), NULL, NULL, NULL }
#define CARRY_LM_OWN_KEY(key, type, field, form) \
    { key, CARRY_LM_##form, offsetof(carry_lm_config, own) + offsetof(type, field), NULL, NULL, NULL }
#define CARRY_LM_WORD(key, form) \
    { key, CARRY_LM_##form, 0, NULL, NULL, NULL }
#define CARRY_LM_WRITTEN(key, form, text) \
    { key, CARRY_LM_##form, 0, NULL, NULL, text }
#define CARRY_LM_LAST_KEY CARRY_LM_WORD(NULL, READ_OVER)

/* Fails with CARRY_EUNSUPPORTED. The message has the file, the line, the key and its value; `why` says what is
   accepted. */
carry_status carry_lm_config_refuse(const carry_lm_source *s, const carry_json *node, const char *why);
/* Reads quantization_config. A method that is not supported is refused (file/quantised.h); null means not quantised. */
carry_status carry_lm_config_read_quantised(const carry_lm_source *s, const carry_json *node);
/* True for null, false, 0 and []. */
bool carry_lm_config_is_off(const carry_json *node);
/* Read keys of which only one value is supported: the scores of the family's router, and the number 1. */
carry_status carry_lm_config_read_score(const carry_lm_source *s, const carry_json *node);
carry_status carry_lm_config_read_one(const carry_lm_source *s, const carry_json *node);
/* For a key that the family does not list: fails if it changes what the model computes, unless its value changes
   nothing. `object` has the key. */
carry_status carry_lm_config_check_unknown(const carry_lm_source *s, const carry_json *object, const carry_json *node);
/* Reads one key according to its form; reads every key of an object that is in a list of accepted keys. */
carry_status carry_lm_config_read_key(const carry_lm_source *s, const carry_lm_key *f, const carry_json *node);
carry_status carry_lm_config_read_object(const carry_lm_source *s, const carry_lm_key *keys, const carry_json *node);

/* carry_lm_check_size fails unless 1 <= size <= most, and carry_lm_check_number unless 0 < number <= most, with
   CARRY_ESIZE and a message that names the key and the value. */
carry_status carry_lm_check_size(carry_ctx *ctx, const char *key, int64_t size, int64_t most);
carry_status carry_lm_check_number(carry_ctx *ctx, const char *key, double number, double most);

carry_lm_config carry_lm_config_default(const struct carry_lm_family *family);
/* Checks every size and fills in derived values. Call it again after a change. CARRY_EUNSUPPORTED and CARRY_ESIZE name
   the key and the value. */
carry_status carry_lm_config_finish(carry_ctx *ctx, carry_lm_config *config);

/* `name` is used in messages. Both functions call carry_lm_config_finish. */
carry_status carry_lm_config_parse(carry_ctx *ctx, carry_lm_config *config, const carry_json *root, const char *name);
carry_status carry_lm_config_read(carry_ctx *ctx, carry_lm_config *config, const char *path);
/* Reads the config.json of a folder, or the equivalent in a .gguf file. */
carry_status carry_lm_config_read_model(carry_ctx *ctx, carry_lm_config *config, const char *model);

/* Writes the text of a config.json, with the keys that the family's original library writes; dtype is the type of the
   weights. carry_lm_config_write replaces the file at path with it. */
void carry_lm_config_put(carry_json_text *text, const carry_lm_config *config, carry_dtype dtype);
carry_status carry_lm_config_write(carry_ctx *ctx, const carry_lm_config *config, carry_dtype dtype, const char *path);

#endif
