/* The parameters of a language model: their list. lm_init.c has their start values. */
#include "model/lm/lm.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "model/lm/adapter.h"
#include "model/lm/families/family.h"
#include "model/lm/lm_heads.h"
#include "model/lm/lm_names.h"
#include "model/lm/lm_pass.h"
#include "model/lm/lm_quantised.h"
#include "ops/sampler.h"

const carry_lm_part *carry_lm_part_at(int index) {
    return index < CARRY_LM_MIXERS ? carry_lm_mixer_at(index) : carry_lm_feedforward_at(index - CARRY_LM_MIXERS);
}

carry_lm_parameter carry_lm_matrix(int64_t out, int64_t in) {
    return (carry_lm_parameter){.rank = 2, .shape = {out, in}, .decays = true, .start = CARRY_LM_NORMAL};
}

static int64_t add_named(carry_lm *lm, const char *name, carry_lm_parameter parameter) {
    (void)snprintf(parameter.name, sizeof parameter.name, "%s", name);
    return carry_parameters_add(&lm->own, parameter); /* carry_lm_config_finish has bounded the sum of all sizes */
}

static carry_lm_parameter norm_of(const carry_lm_config *c) {
    return (carry_lm_parameter){.rank = 1,
                                .shape = {c->hidden_size},
                                .decays = true,
                                .start = c->norm_plus_one ? CARRY_LM_ZEROS : CARRY_LM_ONES};
}

static int64_t add_to_layer(carry_lm *lm, int64_t layer, const char *key, carry_lm_parameter parameter) {
    /* Keys are shorter than 38 characters, and models have fewer than 2^31 layers. */
    const char *prefix = lm->config.family->prefix;
    (void)snprintf(parameter.name, sizeof parameter.name, "%.20slayers.%d.%.38s", prefix != NULL ? prefix : "model.",
                   (int)layer, key);
    return carry_parameters_add(&lm->own, parameter);
}

/* The order of a tensor's rows in files, if the family stores them in groups. */
static carry_row_order order_of(const carry_lm_config *c, const carry_lm_sublayer *s, const char *name) {
    carry_row_order order = {0};
    const carry_lm_grouped *g = c->family->grouped;
    while (g != NULL && g->name != NULL && strcmp(g->name, name) != 0) {
        g++;
    }
    if (g != NULL && g->name != NULL) {
        order.groups = c->delta.heads;
        for (int i = 0; i < g->slots; i++) {
            order.rows[i] = s->slot[g->slot[i]].rows / order.groups;
            order.first[i] = s->slot[g->slot[i]].first;
        }
    }
    return order;
}

/* Adds the parameters of a part's slots. Slots with the same name are rows of one tensor, in the order of the slots. */
static void list_slots(carry_lm *lm, int64_t layer, carry_lm_sublayer *s, const char *const *names) {
    const carry_lm_config *c = &lm->config;
    bool listed[CARRY_LM_SLOTS] = {false};
    for (int i = 0; i < s->part->slots; i++) {
        carry_lm_parameter whole = s->part->describe(c, i);
        int shared[CARRY_LM_SLOTS] = {i};
        int count = listed[i] ? 0 : 1;
        for (int next = i + 1; count > 0 && next < s->part->slots; next++) {
            if (strcmp(names[next], names[i]) == 0) {
                const int64_t rows = s->part->describe(c, next).shape[0];
                s->slot[i].rows = count == 1 ? whole.shape[0] : s->slot[i].rows;
                s->slot[next] = (carry_lm_slot){.first = whole.shape[0], .rows = rows};
                whole.shape[0] += rows;
                shared[count++] = next;
            }
        }
        if (count > 0) {
            whole.order = order_of(c, s, names[i]);
            const int64_t parameter = add_to_layer(lm, layer, names[i], whole);
            for (int j = 0; j < count; j++) {
                s->slot[shared[j]].parameter = parameter;
                listed[shared[j]] = true;
            }
        }
    }
}

#define WIDE 2048

/* Zeros fill up a multiple of this number of rows: 16-bit products are several times slower if a size is not a multiple
   of 8, and 8-bit ones need 16. For many rows in training it is that of whole tiles: on an H200 a product with 3,088
   columns takes 227 us, with 3,200 columns 209 (docs/attempts/training-gpu.md). Generation would read the zeros for
   every token. The zeros stay zeros: their gradients are cleared. */
static int64_t whole_of(const carry_lm *lm, int64_t rows) {
    return lm->may_train && rows >= WIDE ? 128 : 16;
}

/* Sets the offsets of a part's parameters in the order of `together`, and adds zeros after them up to whole rows. Their
   order in the list of parameters does not change. */
static void put_together(carry_lm *lm, carry_lm_sublayer *s, int64_t listed) {
    const int *slots = s->part->together;
    carry_parameter *all = lm->own.parameter;
    int64_t rows = 0;
    int64_t at = INT64_MAX;
    int64_t before = -1;
    for (int i = 0; slots[i] >= 0; i++) {
        const int64_t p = s->slot[slots[i]].parameter;
        at = p >= 0 && all[p].offset < at ? all[p].offset : at;
    }
    for (int i = 0; slots[i] >= 0; i++) {
        const int64_t p = s->slot[slots[i]].parameter;
        if (p >= 0 && p != before) { /* several slots may be rows of one tensor */
            all[p].offset = all[p].wide = at;
            at += carry_parameters_room(all[p].count);
            rows += all[p].shape[0];
            before = p;
        }
    }
    s->rest = at;
    s->rest_rows = (whole_of(lm, rows) - rows % whole_of(lm, rows)) % whole_of(lm, rows);
    const int64_t room = carry_parameters_room(s->rest_rows * lm->config.hidden_size);
    for (int64_t p = listed; p < lm->own.parameters; p++) {
        all[p].offset += all[p].offset >= at ? room : 0;
        all[p].wide = all[p].offset;
    }
    lm->own.count += room;
}

/* names: the family's names of the slots; NULL: the part's own. */
static void list_sublayer(carry_lm *lm, int64_t layer, carry_lm_sublayer *s, int kind, const char *norm,
                          const char *const *names) {
    s->part = carry_lm_part_at(kind);
    s->kind = kind;
    if (s->part->slots == 0) { /* the layer lacks this part */
        s->norm = -1;
        return;
    }
    s->norm = add_to_layer(lm, layer, norm, norm_of(&lm->config));
    const int64_t listed = lm->own.parameters;
    list_slots(lm, layer, s, names != NULL ? names : s->part->names);
    if (lm->own.device != 0 && s->part->together != NULL) {
        put_together(lm, s, listed);
    }
}

static void list_layer(carry_lm *lm, int64_t layer) {
    const carry_lm_config *c = &lm->config;
    const carry_lm_family *f = c->family;
    const int mixer = c->mixer[layer];
    const int feedforward = c->feedforward[layer];
    carry_lm_layer *l = &lm->layer[layer];
    l->norms_after = c->norms_after[layer];
    const char *const *norms = f->norms[l->norms_after ? 1 : 0];
    list_sublayer(lm, layer, &l->mixer, mixer, norms[0], f->mixer[mixer]);
    list_sublayer(lm, layer, &l->feedforward, CARRY_LM_MIXERS + feedforward, norms[1], f->feedforward[feedforward]);
}

static void list_heads(carry_lm *lm) {
    const carry_lm_config *c = &lm->config;
    lm->embeddings = lm->head = -1;
    lm->join = add_named(lm, "mtp.fc.weight", carry_lm_matrix(c->hidden_size, 2 * c->hidden_size));
    lm->join_embedding = add_named(lm, "mtp.pre_fc_norm_embedding.weight", norm_of(c));
    lm->join_hidden = add_named(lm, "mtp.pre_fc_norm_hidden.weight", norm_of(c));
    list_layer(lm, 0);
    lm->norm = add_named(lm, c->family->norm, norm_of(c));
}

static void list_parameters(carry_lm *lm) {
    const carry_lm_config *c = &lm->config;
    carry_lm_parameter table = carry_lm_matrix(c->vocab_size, c->hidden_size);
    table.is_table = true;
    if (carry_lm_is_heads(lm)) {
        list_heads(lm);
        return;
    }
    lm->embeddings = add_named(lm, c->family->embeddings, table);
    for (int64_t layer = 0; layer < c->num_hidden_layers; layer++) {
        list_layer(lm, layer);
    }
    lm->norm = add_named(lm, c->family->norm != NULL ? c->family->norm : "model.norm.weight", norm_of(c));
    lm->head = c->tie_word_embeddings ? lm->embeddings : add_named(lm, "lm_head.weight", table);
}

static carry_status check_device(const carry_lm *lm, int device) {
    const carry_lm_config *c = &lm->config;
    for (int64_t i = 0; device != 0 && i < c->num_hidden_layers; i++) {
        const carry_lm_part *parts[] = {carry_lm_mixer_at(c->mixer[i]), carry_lm_feedforward_at(c->feedforward[i])};
        for (int j = 0; j < 2; j++) {
            if (parts[j]->cpu_only) {
                return carry_fail(lm->ctx, CARRY_EUNSUPPORTED, "layers of %s run on the CPU only: use --device cpu",
                                  parts[j]->name);
            }
        }
    }
    return CARRY_OK;
}

/* Where the weights come from, and how they are stored. */
typedef struct weights_options {
    const char *folder;               /* NULL: none */
    bool maps;                        /* matrices stay in the mapped file */
    const carry_quant_format *format; /* format of random matrices; NULL: they are not quantised */
    const carry_lm *tables;           /* for multi-token heads: their model */
    carry_dtype narrow;               /* experts are kept in this type only; CARRY_F32: all weights have f32 masters */
} weights_options;

static carry_status make(carry_lm *lm, int device, const weights_options *o) {
    CARRY_TRY(carry_lm_config_finish(lm->ctx, &lm->config));
    CARRY_TRY(check_device(lm, device));
    const int64_t layers = lm->config.num_hidden_layers;
    lm->layer = calloc((size_t)layers, sizeof *lm->layer);
    if (lm->layer == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: a model of %" PRId64 " layers", layers);
    }
    CARRY_TRY(carry_parameters_open(lm->ctx, &lm->own, device, layers * 2 * (CARRY_LM_SLOTS + 1) + 4));
    lm->may_train = !o->maps && o->format == NULL && o->narrow == CARRY_F32;
    list_parameters(lm);
    lm->own.names = lm->config.family->files;
    lm->own.other = lm->own.names != NULL ? carry_lm_other_name : NULL;
    CARRY_TRY(o->folder != NULL ? carry_parameters_check(&lm->own, o->folder) : CARRY_OK);
    carry_lm_mark_tiled(lm);
    CARRY_TRY(o->maps             ? carry_parameters_map(&lm->own, o->folder)
              : o->format != NULL ? carry_parameters_tile(&lm->own, o->format)
                                  : CARRY_OK);
    if (o->maps || o->format != NULL) {
        carry_lm_move_rest(lm);
    }
    const bool is_large = o->maps && device != 0 && carry_parameters_exceed(&lm->own);
    const carry_dtype narrow = is_large ? carry_parameters_stored(&lm->own) : o->narrow;
    if (narrow != CARRY_F32) {
        carry_parameters_narrow(&lm->own, narrow);
    }
    return carry_parameters_allocate(&lm->own);
}

static carry_status new_model(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                              const weights_options *o) {
    *made = NULL;
    carry_lm *lm = calloc(1, sizeof *lm);
    if (lm == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a model");
    }
    lm->ctx = ctx;
    lm->config = *config;
    lm->tables = o->tables != NULL ? o->tables : lm;
    carry_status status = make(lm, device, o);
    if (status != CARRY_OK) {
        carry_lm_free(lm);
        return status;
    }
    *made = lm;
    return CARRY_OK;
}

carry_status carry_lm_new(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device) {
    return new_model(ctx, made, config, device, &(weights_options){.narrow = CARRY_F32});
}

carry_status carry_lm_new_for(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                              const char *folder) {
    return new_model(ctx, made, config, device, &(weights_options){.folder = folder, .narrow = CARRY_F32});
}

carry_status carry_lm_new_mapped(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                 const char *folder) {
    return new_model(ctx, made, config, device,
                     &(weights_options){.folder = folder, .maps = true, .narrow = CARRY_F32});
}

carry_status carry_lm_new_narrow(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                 carry_dtype dtype) {
    return new_model(ctx, made, config, device, &(weights_options){.narrow = dtype});
}

carry_status carry_lm_new_quantised(carry_ctx *ctx, carry_lm **made, const carry_lm_config *config, int device,
                                    const carry_quant_format *format, carry_dtype narrow) {
    return new_model(ctx, made, config, device, &(weights_options){.format = format, .narrow = narrow});
}

/* The family of a model's multi-token heads: other names of tensors. */
typedef struct heads_family {
    carry_lm_family family; /* first: carry_lm_free frees it */
    carry_lm_file_names names;
} heads_family;

/* Tensors of the model itself are surplus to its heads. */
static bool is_of_model(const void *unused, const carry_weights *weights, const char *name) {
    (void)unused;
    (void)weights;
    (void)name;
    return true;
}

carry_status carry_lm_new_heads(carry_lm *model, carry_lm **made) {
    const carry_lm_family *family = model->config.family;
    carry_lm_config config = model->config;
    *made = NULL;
    heads_family *own = malloc(sizeof *own);
    if (own == NULL) {
        return carry_fail(model->ctx, CARRY_EMEMORY, "out of memory: multi-token heads");
    }
    own->family = *family;
    own->family.prefix = "mtp.";
    own->family.norm = "mtp.norm.weight";
    own->family.files = &own->names;
    own->names = (carry_lm_file_names){.prefix = "mtp.", .pieces = family->files->pieces};
    config.family = &own->family;
    family->set_heads(&config);
    const weights_options o = {.folder = model->folder, .maps = true, .tables = model, .narrow = CARRY_F32};
    carry_status status = new_model(model->ctx, made, &config, model->own.device, &o);
    if (status != CARRY_OK) {
        free(own);
        return status;
    }
    (*made)->heads_family = &own->family;
    status = carry_parameters_load(&(*made)->own, model->folder, is_of_model, NULL);
    if (status != CARRY_OK) {
        carry_lm_free(*made);
        *made = NULL;
    }
    return status;
}

void carry_lm_free(carry_lm *lm) {
    if (lm != NULL) {
        carry_lm_unpack(lm);
        carry_lm_adapter_free(lm);
        carry_parameters_free(&lm->own);
        free(lm->layer);
        free(lm->folder);
        free(lm->heads_family);
        free(lm);
    }
}

carry_status carry_lm_want_gradients(carry_lm *lm) {
    return carry_parameters_want_gradients(&lm->own);
}

carry_tensor carry_lm_weight(const carry_lm *lm, int64_t parameter) {
    return carry_parameters_view(&lm->own, lm->own.weights, parameter);
}

carry_tensor carry_lm_gradient(const carry_lm *lm, int64_t parameter) {
    if (lm->own.gradients == NULL) {
        return (carry_tensor){0};
    }
    return carry_parameters_view(&lm->own, lm->own.gradients, parameter);
}

/* The first parameter of a layer is its first norm. */
static int64_t begin_of(const carry_lm *lm, int64_t layer) {
    if (layer < 0) {
        return 0;
    }
    int64_t first = lm->norm;
    if (layer < lm->config.num_hidden_layers) {
        const carry_lm_layer *l = &lm->layer[layer];
        first = l->mixer.norm >= 0 ? l->mixer.norm : l->feedforward.norm;
    }
    return lm->own.parameter[first].offset;
}

void carry_lm_range(const carry_lm *lm, int64_t layer, int64_t *first, int64_t *count) {
    *first = begin_of(lm, layer);
    *count = (layer < lm->config.num_hidden_layers ? begin_of(lm, layer + 1) : lm->own.count) - *first;
}
