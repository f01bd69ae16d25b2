/* Folders of adapters in PEFT's format, and merging them into weights. */
#include "model/lm/adapter.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carry/ops.h"
#include "core/context.h"
#include "core/file.h"
#include "core/json_write.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "file/checkpoint.h"
#include "file/hub_cache.h"
#include "file/safetensors.h"
#include "model/lm/families/family.h"
#include "model/lm/lm_names.h"

#define PREFIX "base_model.model."
#define CONFIG_BYTES ((size_t)1 << 20)

/* A folder that is open. */
typedef struct opened {
    carry_lm *lm;
    char folder[CARRY_FILE_PATH];
    carry_adapter_options options;
    double scale;
    carry_safetensors file;
    const carry_tensor **pair; /* [2 * parameters of the model]: A and B; NULL: the parameter is not a target */
} opened;

static void close_folder(opened *o) {
    carry_safetensors_close(&o->file);
    free(o->pair);
}

static bool is_set(const carry_json *node) {
    return node != NULL && node->kind != CARRY_JSON_NULL && !(node->kind == CARRY_JSON_BOOL && !node->truth) &&
           !((node->kind == CARRY_JSON_OBJECT || node->kind == CARRY_JSON_ARRAY) && carry_json_count(node) == 0);
}

static carry_status read_config(opened *o, const carry_json *root, const char *path) {
    carry_ctx *ctx = o->lm->ctx;
    static const char *const off[] = {
        "use_dora",          "fan_in_fan_out",  "modules_to_save",         "rank_pattern",
        "alpha_pattern",     "lora_bias",       "trainable_token_indices", "target_parameters",
        "use_qalora",        "use_bdlora",      "layers_to_transform",     "layers_pattern",
        "layer_replication", "exclude_modules", "alora_invocation_tokens", "arrow_config"};
    /* Other ways to initialise (PiSSA, OLoRA, CorDA, LoftQ) also change the weights of the model. */
    static const char *const initial[] = {"gaussian", "orthogonal", "eva"};
    const carry_json *init = carry_json_find(root, "init_lora_weights");
    const carry_json *type = carry_json_find(root, "peft_type");
    const carry_json *bias = carry_json_find(root, "bias");
    const double rank = carry_json_number(carry_json_find(root, "r"));
    const double alpha = carry_json_number(carry_json_find(root, "lora_alpha"));
    char shown[CARRY_JSON_SHOWN];
    if (!carry_json_is_text(type, "LORA")) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: peft_type is %s: only LORA is supported", path,
                          carry_json_show(shown, type));
    }
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        const carry_json *node = carry_json_find(root, off[i]);
        if (is_set(node)) {
            return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: %s is %s, which is not supported", path, off[i],
                              carry_json_show(shown, node));
        }
    }
    if (bias != NULL && !carry_json_is_text(bias, "none")) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "%s: bias is %s: expected \"none\"", path,
                          carry_json_show(shown, bias));
    }
    bool is_plain = init == NULL || init->kind == CARRY_JSON_BOOL || init->kind == CARRY_JSON_NULL;
    for (size_t i = 0; i < sizeof initial / sizeof initial[0]; i++) {
        is_plain = is_plain || carry_json_is_text(init, initial[i]);
    }
    if (!is_plain) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "%s: init_lora_weights is %s, which changes the model's weights: expected true, false, "
                          "gaussian, orthogonal or eva",
                          path, carry_json_show(shown, init));
    }
    if (!(rank >= 1.0 && rank <= CARRY_ADAPTER_MOST_RANK) || rank != floor(rank)) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s: r is %g: expected a whole number from 1 to %d", path, rank,
                          CARRY_ADAPTER_MOST_RANK);
    }
    if (!(fabs(alpha) <= 1e9)) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s: lora_alpha is %g: expected a number of at most 1e9", path, alpha);
    }
    o->options.rank = (int64_t)rank;
    o->options.alpha = alpha;
    o->options.is_rank_stabilised = is_set(carry_json_find(root, "use_rslora"));
    o->scale = alpha / (o->options.is_rank_stabilised ? sqrt(rank) : rank);
    return CARRY_OK;
}

/* Returns the index of the parameter that the file's tensor `name` adapts, or -1 if it adapts no parameter. `name`
   contains the parameter's name in the model or in the family's files. Sets *which to 0 for A and to 1 for B. */
static int64_t target_of(const carry_lm *lm, const char *name, int *which) {
    static const char *const ends[] = {".lora_A.weight", ".lora_B.weight", ".lora_A.default.weight",
                                       ".lora_B.default.weight"};
    const char *from = strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : name;
    for (int i = 0; i < 4; i++) {
        const size_t length = strlen(from);
        if (length <= strlen(ends[i]) || strcmp(from + length - strlen(ends[i]), ends[i]) != 0) {
            continue;
        }
        char whole[CARRY_SAFETENSORS_NAME + 16];
        char own[CARRY_SAFETENSORS_NAME + 16];
        *which = i % 2;
        (void)snprintf(whole, sizeof whole, "%.*s.weight", (int)(length - strlen(ends[i])), from);
        const carry_parameter *p = carry_parameters_find(&lm->own, whole);
        if (p == NULL && lm->config.family->files != NULL) {
            (void)carry_lm_own_name(lm->config.family->files, whole, own, sizeof own);
            p = carry_parameters_find(&lm->own, own);
        }
        return p != NULL && carry_lm_adapter_fits(lm, p - lm->own.parameter) ? p - lm->own.parameter : -1;
    }
    return -1;
}

static carry_status sort_tensors(opened *o) {
    const carry_lm *lm = o->lm;
    for (int64_t i = 0; i < o->file.count; i++) {
        const carry_safetensors_entry *e = &o->file.entries[i];
        int which = 0;
        const int64_t at = target_of(lm, e->name, &which);
        if (at < 0) {
            char known[CARRY_ADAPTER_TARGETS];
            return carry_fail(lm->ctx, CARRY_EFORMAT,
                              "%s: %s is not for a linear map of this model (%s), whose maps are %s", o->folder,
                              e->name, lm->config.family->name, carry_lm_adapter_targets(lm, known, sizeof known));
        }
        const carry_parameter *p = &lm->own.parameter[at];
        const int64_t shape[] = {which == 0 ? o->options.rank : p->shape[0],
                                 which == 0 ? p->shape[1] : o->options.rank};
        if (e->view.rank != 2 || memcmp(e->view.shape, shape, sizeof shape) != 0 ||
            !carry_dtype_is_real(e->view.dtype)) {
            char has[CARRY_SHAPE_TEXT];
            char needs[CARRY_SHAPE_TEXT];
            return carry_fail(lm->ctx, CARRY_ESHAPE,
                              "%s: %s has shape %s, but this model needs %s: the adapter is for another model",
                              o->folder, e->name, carry_shape_text(has, e->view.rank, e->view.shape),
                              carry_shape_text(needs, 2, shape));
        }
        o->pair[2 * at + which] = &e->view;
    }
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        if ((o->pair[2 * i] == NULL) != (o->pair[2 * i + 1] == NULL)) {
            return carry_fail(lm->ctx, CARRY_EFORMAT, "%s has only one of lora_A and lora_B for %s", o->folder,
                              lm->own.parameter[i].name);
        }
    }
    return o->file.count > 0 ? CARRY_OK : carry_fail(lm->ctx, CARRY_EFORMAT, "%s has no tensors", o->folder);
}

/* Opens and checks an adapter's folder. After a failure nothing is left open. */
static carry_status open_folder(carry_lm *lm, opened *o, const char *from) {
    char path[CARRY_FILE_PATH];
    carry_json *root;
    *o = (opened){.lm = lm};
    CARRY_TRY(carry_hub_resolve(lm->ctx, path, from)); /* hf:OWNER/NAME */
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        return carry_fail(lm->ctx, CARRY_ENOTFOUND, "there is no folder %s: an adapter is a folder with %s and %s",
                          path, CARRY_ADAPTER_CONFIG, CARRY_ADAPTER_WEIGHTS);
    }
    CARRY_TRY(carry_checkpoint_resolve(lm->ctx, o->folder, path));
    CARRY_TRY(carry_file_in(lm->ctx, path, o->folder, CARRY_ADAPTER_CONFIG));
    CARRY_TRY(carry_json_read(lm->ctx, &root, path, CONFIG_BYTES));
    carry_status status = read_config(o, root, path);
    carry_json_free(root);
    CARRY_TRY(status);
    CARRY_TRY(carry_file_in(lm->ctx, path, o->folder, CARRY_ADAPTER_WEIGHTS));
    CARRY_TRY(carry_safetensors_open(lm->ctx, &o->file, path));
    o->pair = calloc((size_t)lm->own.parameters, 2 * sizeof(const carry_tensor *));
    status = o->pair != NULL ? CARRY_OK : carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: %s", o->folder);
    status = status == CARRY_OK ? sort_tensors(o) : status;
    if (status != CARRY_OK) {
        close_folder(o);
    }
    return status;
}

/* Converts a tensor of the file to f32 in host memory, with its rows in the order of the model. The caller frees
 *to. */
static carry_status widen(const opened *o, const carry_tensor *from, const carry_row_order *order, float **to) {
    carry_ctx *ctx = o->lm->ctx;
    if (from == NULL) {
        return carry_fail(ctx, CARRY_EFORMAT, "%s lacks lora_A or lora_B of a target", o->folder);
    }
    const int64_t count = carry_tensor_count(from);
    float *values = carry_aligned_new((size_t)count * sizeof *values);
    float *ordered = order != NULL && order->groups > 0 ? carry_aligned_new((size_t)count * sizeof *values) : values;
    *to = ordered;
    if (values == NULL || ordered == NULL) {
        if (ordered != values) {
            free(ordered);
        }
        free(values);
        *to = NULL;
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an adapter");
    }
    const carry_status status =
        carry_convert(ctx, carry_view_1d(values, CARRY_F32, count), carry_view_1d(from->data, from->dtype, count));
    if (ordered != values) {
        const carry_parameter p = {.count = count, .shape = {from->shape[0]}, .order = *order};
        carry_parameters_reorder(&p, ordered, values, CARRY_F32, false);
        free(values);
    }
    if (status != CARRY_OK) {
        free(ordered);
    }
    return status;
}

static carry_status put(const opened *o, int64_t index, const carry_tensor *from) {
    carry_parameters *own = &o->lm->adapter->own;
    float *values;
    CARRY_TRY(widen(o, from, &own->parameter[index].order, &values));
    const carry_status status = carry_parameters_put(own, index, values, CARRY_F32);
    free(values);
    return status;
}

carry_status carry_lm_adapter_load(carry_lm *lm, const char *folder, const carry_adapter_options *options) {
    opened o;
    CARRY_TRY(open_folder(lm, &o, folder));
    bool *targets = calloc((size_t)lm->own.parameters, sizeof *targets);
    carry_status status =
        targets != NULL ? CARRY_OK : carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: %s", o.folder);
    for (int64_t i = 0; status == CARRY_OK && i < lm->own.parameters; i++) {
        targets[i] = o.pair[2 * i] != NULL;
    }
    o.options.dropout = options != NULL ? options->dropout : 0.0;
    o.options.seed = options != NULL ? options->seed : 0;
    status = status == CARRY_OK ? carry_lm_adapter_list(lm, &o.options, targets) : status;
    for (int64_t i = 0; status == CARRY_OK && i < lm->own.parameters; i++) {
        const int64_t a = lm->adapter->a[i];
        status = a >= 0 ? put(&o, a, o.pair[2 * i]) : CARRY_OK;
        status = status == CARRY_OK && a >= 0 ? put(&o, a + 1, o.pair[2 * i + 1]) : status;
    }
    free(targets);
    close_folder(&o);
    return status == CARRY_OK ? carry_parameters_round(&lm->adapter->own) : status;
}

/* Writes the last word of each target's module name, each word once. */
static void add_targets(carry_json_text *text, const carry_lm *lm) {
    const carry_parameters *own = &lm->adapter->own;
    carry_json_begin(text, "target_modules", '[');
    for (int64_t i = 0; i < own->parameters; i += 2) {
        char word[sizeof own->parameter[i].name];
        bool is_new = true;
        for (int64_t j = 0; j <= i && is_new; j += 2) {
            char other[sizeof word];
            (void)snprintf(other, sizeof other, "%s", own->parameter[j].name);
            *strstr(other, ".lora_A.") = '\0';
            const char *last = strrchr(other, '.') != NULL ? strrchr(other, '.') + 1 : other;
            if (j == i) {
                carry_json_add_text(text, NULL, last);
            } else {
                (void)snprintf(word, sizeof word, "%s", own->parameter[i].name);
                *strstr(word, ".lora_A.") = '\0';
                is_new = strcmp(strrchr(word, '.') + 1, last) != 0;
            }
        }
    }
    carry_json_end(text, ']');
}

static carry_status write_config(const carry_lm *lm, const char *path, const char *base) {
    const carry_adapter_options *o = &lm->adapter->options;
    carry_json_text text = {.spaced = true};
    carry_json_begin(&text, NULL, '{');
    carry_json_add_text(&text, "peft_type", "LORA");
    carry_json_add_text(&text, "task_type", "CAUSAL_LM");
    carry_json_add_text(&text, "base_model_name_or_path", base);
    carry_json_add_integer(&text, "r", o->rank);
    carry_json_add_number(&text, "lora_alpha", o->alpha);
    carry_json_add_number(&text, "lora_dropout", o->dropout);
    add_targets(&text, lm);
    carry_json_add_bool(&text, "use_rslora", o->is_rank_stabilised);
    carry_json_add_bool(&text, "use_dora", false);
    carry_json_add_text(&text, "bias", "none");
    carry_json_add_bool(&text, "fan_in_fan_out", false);
    carry_json_add_bool(&text, "inference_mode", true);
    carry_json_add_bool(&text, "init_lora_weights", true);
    carry_json_end(&text, '}');
    carry_status status =
        text.failed ? carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: writing %s", path) : CARRY_OK;
    status = status == CARRY_OK ? carry_file_replace(lm->ctx, path, text.bytes, text.length) : status;
    carry_json_text_free(&text);
    return status;
}

carry_status carry_lm_adapter_save(const carry_lm *lm, const char *folder, const char *base) {
    static const char *const notes[] = {"format", "pt", NULL};
    const carry_parameters *own = &lm->adapter->own;
    char path[CARRY_FILE_PATH];
    const float *weights;
    float *copied;
    CARRY_TRY(carry_file_in(lm->ctx, path, folder, CARRY_ADAPTER_CONFIG));
    CARRY_TRY(write_config(lm, path, base));
    CARRY_TRY(carry_file_in(lm->ctx, path, folder, CARRY_ADAPTER_WEIGHTS));
    carry_status status = carry_parameters_see(own, own->weights, &weights, &copied);
    carry_safetensors_item *items = calloc((size_t)own->parameters, sizeof *items);
    float *ordered = carry_aligned_new((size_t)own->count * sizeof *ordered);
    if (status == CARRY_OK && (items == NULL || ordered == NULL)) {
        status = carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: writing %s", path);
    }
    for (int64_t i = 0; status == CARRY_OK && i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        float *to = ordered + p->offset;
        if (p->order.groups > 0) {
            carry_parameters_reorder(p, to, weights + p->offset, CARRY_F32, true);
        } else {
            memcpy(to, weights + p->offset, (size_t)p->count * sizeof *to);
        }
        items[i] = (carry_safetensors_item){
            .name = p->name, .tensor = carry_view(to, CARRY_F32, p->rank, p->shape), .dtype = CARRY_F32};
    }
    status = status == CARRY_OK ? carry_safetensors_write(lm->ctx, path, items, own->parameters, notes) : status;
    free(ordered);
    free(items);
    free(copied);
    return status;
}

/* Stores a merged weight. A weight in a mapped file is replaced by a copy in memory, in the file's type, or in bf16 if
   it was quantised. */
static carry_status put_merged(carry_lm *lm, int64_t index, float *w) {
    carry_parameter *p = &lm->own.parameter[index];
    if (p->mapped == NULL) {
        return carry_parameters_put_part(&lm->own, index, w);
    }
    const carry_dtype dtype = p->mapped_dtype == CARRY_QUANTISED ? CARRY_BF16 : p->mapped_dtype;
    void *made = carry_aligned_new((size_t)p->count * carry_dtype_size(dtype));
    if (made == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    }
    const carry_status status =
        carry_convert(lm->ctx, carry_view_1d(made, dtype, p->count), carry_view_1d(w, CARRY_F32, p->count));
    free(p->blocks);
    p->blocks = made;
    p->mapped = made;
    p->mapped_dtype = dtype;
    return status;
}

/* Merges one weight in host memory: W + scale B A in f32, rounded to the type in which the model keeps it. */
static carry_status merge_one(const opened *o, int64_t index) {
    carry_lm *lm = o->lm;
    const carry_parameter *p = &lm->own.parameter[index];
    const int64_t rank = o->options.rank;
    float *a = NULL;
    float *b = NULL;
    float *w = carry_aligned_new((size_t)p->count * sizeof *w);
    carry_status status = w != NULL ? CARRY_OK : carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: %s", p->name);
    status = status == CARRY_OK ? widen(o, o->pair[2 * index], NULL, &a) : status;
    if (status == CARRY_OK) {
        status = widen(o, o->pair[2 * index + 1], &p->order, &b);
        b = status == CARRY_OK ? b : NULL;
    } else {
        a = NULL;
    }
    status = status == CARRY_OK ? carry_parameters_sample(&lm->own, w, index, p->count) : status;
    for (int64_t i = 0; status == CARRY_OK && i < p->shape[0] * rank; i++) {
        b[i] *= (float)o->scale;
    }
    if (status == CARRY_OK) { /* w += b a, computed as the input gradient of a product: dx = dy W */
        status = carry_linear_backward(lm->ctx, carry_view_2d(w, CARRY_F32, p->shape[0], p->shape[1]),
                                       (carry_tensor){0}, carry_view_2d(b, CARRY_F32, p->shape[0], rank),
                                       carry_view_2d(w, CARRY_F32, p->shape[0], p->shape[1]),
                                       carry_view_2d(a, CARRY_F32, rank, p->shape[1]), true);
    }
    status = status == CARRY_OK ? put_merged(lm, index, w) : status;
    free(a);
    free(b);
    free(w);
    return status;
}

carry_status carry_lm_adapter_merge(carry_lm *lm, const char *folder) {
    opened o;
    CARRY_TRY(open_folder(lm, &o, folder));
    carry_status status = CARRY_OK;
    for (int64_t i = 0; status == CARRY_OK && i < lm->own.parameters; i++) {
        status = o.pair[2 * i] != NULL ? merge_one(&o, i) : CARRY_OK;
    }
    close_folder(&o);
    return status == CARRY_OK ? carry_parameters_round(&lm->own) : status;
}

bool carry_lm_adapter_is(const char *folder) {
    char path[CARRY_FILE_PATH];
    struct stat about;
    return snprintf(path, sizeof path, "%s/%s", folder, CARRY_ADAPTER_CONFIG) < (int)sizeof path &&
           stat(path, &about) == 0;
}
