/* The targets and parameters of adapters. */
#include "model/lm/adapter.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "model/lm/mixers/latent.h"

#define PREFIX "base_model.model."
#define WEIGHT ".weight"

/* True for the map of latent attention that is applied to queries instead of tokens. */
static bool is_absorbed(const carry_lm *lm, int64_t index) {
    for (int64_t i = 0; i < lm->config.num_hidden_layers; i++) {
        const carry_lm_sublayer *m = &lm->layer[i].mixer;
        if (m->part == &carry_lm_mixer_latent && m->slot[CARRY_LM_LATENT_KV_B].parameter == index) {
            return true;
        }
    }
    return false;
}

bool carry_lm_adapter_fits(const carry_lm *lm, int64_t index) {
    const carry_parameter *p = &lm->own.parameter[index];
    const size_t length = strlen(p->name);
    return p->rank == 2 && index != lm->embeddings && index != lm->head && length > strlen(WEIGHT) &&
           strcmp(p->name + length - strlen(WEIGHT), WEIGHT) == 0 && p->shape[0] > 1 && !is_absorbed(lm, index);
}

/* The module of a parameter: its name without ".weight". */
static void module_of(const carry_parameter *p, char *to, size_t size) {
    (void)snprintf(to, size, "%.*s", (int)(strlen(p->name) - strlen(WEIGHT)), p->name);
}

/* True if a module's name is this word or ends in a dot and this word. */
static bool ends_in(const char *module, const char *word, size_t length) {
    const size_t whole = strlen(module);
    return whole >= length && strncmp(module + whole - length, word, length) == 0 &&
           (whole == length || module[whole - length - 1] == '.');
}

const char *carry_lm_adapter_targets(const carry_lm *lm, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        char module[sizeof lm->own.parameter[i].name];
        if (!carry_lm_adapter_fits(lm, i)) {
            continue;
        }
        module_of(&lm->own.parameter[i], module, sizeof module);
        const char *dot = strrchr(module, '.');
        const char *word = dot != NULL ? dot + 1 : module;
        const size_t length = strlen(word);
        bool listed = false;
        for (const char *at = text; *at != '\0' && !listed; at += strspn(at, ", ")) {
            const size_t next = strcspn(at, ",");
            listed = next == length && strncmp(at, word, length) == 0;
            at += next;
        }
        if (!listed && used + length + 3 < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "", word);
        }
    }
    return text;
}

/* Marks the parameters that a list of targets names. */
static carry_status choose_targets(const carry_lm *lm, const char *list, bool *chosen) {
    int64_t count = 0;
    for (const char *at = list; *at != '\0';) {
        const size_t length = strcspn(at, ",");
        bool found = length == 0;
        for (int64_t i = 0; i < lm->own.parameters && length > 0; i++) {
            char module[sizeof lm->own.parameter[i].name];
            if (!carry_lm_adapter_fits(lm, i)) {
                continue;
            }
            module_of(&lm->own.parameter[i], module, sizeof module);
            const bool all = length == strlen("all-linear") && strncmp(at, "all-linear", length) == 0;
            if (all || ends_in(module, at, length)) {
                count += chosen[i] ? 0 : 1;
                found = chosen[i] = true;
            }
        }
        if (!found) {
            char known[CARRY_ADAPTER_TARGETS];
            return carry_fail(lm->ctx, CARRY_ENOTFOUND,
                              "the model has no linear map named '%.*s' that an adapter can change: choose from "
                              "all-linear, %s",
                              (int)(length < 80 ? length : 80), at, carry_lm_adapter_targets(lm, known, sizeof known));
        }
        at += length;
        at += *at == ',' ? 1 : 0;
    }
    return count > 0 ? CARRY_OK : carry_fail(lm->ctx, CARRY_EARGUMENT, "an adapter needs at least one target");
}

static int64_t add_pair(carry_lm *lm, int64_t index, const carry_adapter_options *o) {
    const carry_parameter *p = &lm->own.parameter[index];
    carry_lm_adapter *adapter = lm->adapter;
    char module[sizeof p->name];
    carry_parameter a = {.rank = 2, .shape = {o->rank, p->shape[1]}, .decays = true, .start = CARRY_LM_NORMAL};
    carry_parameter b = {
        .rank = 2, .shape = {p->shape[0], o->rank}, .decays = true, .start = CARRY_LM_ZEROS, .order = p->order};
    module_of(p, module, sizeof module);
    (void)snprintf(a.name, sizeof a.name, PREFIX "%.60s.lora_A" WEIGHT, module);
    (void)snprintf(b.name, sizeof b.name, PREFIX "%.60s.lora_B" WEIGHT, module);
    const int64_t at = carry_parameters_add(&adapter->own, a);
    (void)carry_parameters_add(&adapter->own, b);
    return at;
}

/* The layer of a parameter, from the offset of its first element. */
static int64_t layer_of(const carry_lm *lm, const carry_parameter *p) {
    for (int64_t layer = 0; layer < lm->config.num_hidden_layers; layer++) {
        int64_t first;
        int64_t count;
        carry_lm_range(lm, layer, &first, &count);
        if (p->offset >= first && p->offset < first + count) {
            return layer;
        }
    }
    return lm->config.num_hidden_layers;
}

static carry_status list_pairs(carry_lm *lm, const carry_adapter_options *o, const bool *targets) {
    carry_lm_adapter *adapter = lm->adapter;
    const int64_t layers = lm->config.num_hidden_layers;
    CARRY_TRY(carry_parameters_open(lm->ctx, &adapter->own, lm->own.device, 2 * lm->own.parameters + 1));
    for (int64_t layer = 0; layer <= layers; layer++) {
        adapter->first[layer] = adapter->own.count;
        for (int64_t i = 0; layer < layers && i < lm->own.parameters; i++) {
            if (targets[i] && layer_of(lm, &lm->own.parameter[i]) == layer) {
                adapter->a[i] = add_pair(lm, i, o);
            }
        }
    }
    CARRY_TRY(carry_parameters_allocate(&adapter->own));
    return carry_parameters_want_gradients(&adapter->own);
}

carry_status carry_lm_adapter_list(carry_lm *lm, const carry_adapter_options *o, const bool *targets) {
    if (o->rank < 1 || o->rank > CARRY_ADAPTER_MOST_RANK) {
        return carry_fail(lm->ctx, CARRY_ERANGE, "an adapter of rank %" PRId64 ": expected 1 to %d", o->rank,
                          CARRY_ADAPTER_MOST_RANK);
    }
    carry_lm_adapter *adapter = calloc(1, sizeof *adapter);
    if (adapter == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: an adapter");
    }
    lm->adapter = adapter;
    adapter->options = *o;
    adapter->scale = o->alpha / (o->is_rank_stabilised ? sqrt((double)o->rank) : (double)o->rank);
    adapter->a = malloc((size_t)lm->own.parameters * sizeof *adapter->a);
    adapter->first = calloc((size_t)lm->config.num_hidden_layers + 1, sizeof *adapter->first);
    carry_status status = adapter->a != NULL && adapter->first != NULL
                              ? CARRY_OK
                              : carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: an adapter");
    for (int64_t i = 0; status == CARRY_OK && i < lm->own.parameters; i++) {
        adapter->a[i] = -1;
    }
    status = status == CARRY_OK ? list_pairs(lm, o, targets) : status;
    if (status != CARRY_OK) {
        carry_lm_adapter_free(lm);
    }
    return status;
}

static carry_status start(const void *model, const carry_parameter *p, carry_tensor whole, uint64_t seed) {
    const carry_lm *lm = model;
    if (p->start == CARRY_LM_ZEROS) {
        return carry_zero(lm->ctx, whole);
    }
    const float bound = 1.0f / sqrtf((float)p->shape[1]);
    return carry_random_uniform(lm->ctx, whole, seed, carry_crc32c(0, p->name, strlen(p->name)), -bound, bound);
}

carry_status carry_lm_adapter_new(carry_lm *lm, const carry_adapter_options *options) {
    bool *targets = calloc((size_t)lm->own.parameters, sizeof *targets);
    carry_status status = targets != NULL ? CARRY_OK : carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: an adapter");
    status = status == CARRY_OK ? choose_targets(lm, options->targets, targets) : status;
    status = status == CARRY_OK ? carry_lm_adapter_list(lm, options, targets) : status;
    free(targets);
    CARRY_TRY(status);
    return carry_parameters_start(&lm->adapter->own, start, lm, options->seed);
}

void carry_lm_adapter_free(carry_lm *lm) {
    if (lm->adapter != NULL) {
        if (lm->adapter->own.ctx != NULL) {
            carry_parameters_free(&lm->adapter->own);
        }
        free(lm->adapter->a);
        free(lm->adapter->first);
        free(lm->adapter);
        lm->adapter = NULL;
    }
}

void carry_lm_adapter_range(const carry_lm *lm, int64_t layer, int64_t *first, int64_t *count) {
    const bool is_layer = layer >= 0 && layer < lm->config.num_hidden_layers;
    *first = is_layer ? lm->adapter->first[layer] : 0;
    *count = is_layer ? lm->adapter->first[layer + 1] - *first : 0;
}
