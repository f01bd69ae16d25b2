/* Everything before the first step. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "comm/rates.h"
#include "core/error.h"
#include "file/checkpoint.h"
#include "file/hub_cache.h"
#include "core/memory.h"
#include "model/lm/adapter.h"
#include "model/lm/families/fla.h"
#include "train/presets.h"
#include "train/training.h"

#define STEPS 250
#define HIDDEN 192
#define LAYERS 4
#define WARMUP_MOST 100
#define LARGE ((int64_t)1 << 28) /* parameters: from here on a GPU makes the start values, with other last bits */

/* Finds out whether the resumed run held out a part of its text. Rank 0 has read its options. */
static carry_status find_held_back(carry_training *t) {
    if (t->loop.found.step < 0) {
        return CARRY_OK;
    }
    int64_t held_back = 0;
    if (t->loop.speaks) {
        carry_train_options before = carry_train_options_default();
        CARRY_TRY(carry_train_options_read(t->ctx, &before, carry_json_find(t->loop.found.document, "options")));
        held_back = carry_train_holds_back(&before);
    }
    CARRY_TRY(carry_broadcast(t->comm, &held_back, sizeof held_back, 0));
    t->held_back = held_back != 0;
    return CARRY_OK;
}

static void choose_sizes(carry_train_options *o) {
    o->hidden = o->hidden > 0 ? o->hidden : HIDDEN;
    o->layers = o->layers > 0 ? o->layers : LAYERS;
    if (o->head_dim == 0) {
        o->head_dim = o->heads > 0 && o->hidden % o->heads == 0 ? o->hidden / o->heads : o->hidden % 64 == 0 ? 64 : 32;
    }
    if (o->heads == 0) {
        o->heads = o->hidden >= o->head_dim ? o->hidden / o->head_dim : 1;
    }
}

/* The folder with the model's weights; NULL: they are start values. Checkpoints of adapters do not contain them. */
static const char *weights_folder(const carry_training *t) {
    const bool resumes = t->loop.found.step >= 0 && !carry_train_has_adapter(&t->options);
    return resumes ? t->loop.found.path : t->options.model[0] != '\0' ? t->options.model : NULL;
}

static carry_status configure(carry_training *t, carry_lm_config *config) {
    carry_train_options *o = &t->options;
    char path[CARRY_FILE_PATH];
    if (weights_folder(t) != NULL) {
        CARRY_TRY(carry_file_in(t->ctx, path, weights_folder(t), "config.json"));
        return carry_lm_config_read(t->ctx, config, path);
    }
    if (o->architecture[0] != '\0') {
        return carry_lm_config_read(t->ctx, config, o->architecture);
    }
    choose_sizes(o);
    const bool is_gated = strcmp(o->type, "gated_deltanet") == 0;
    *config = carry_lm_config_default(is_gated ? &carry_lm_family_gated_deltanet : &carry_lm_family_delta_net);
    carry_lm_fla *own = carry_lm_fla_of(config);
    const carry_train_preset *preset = carry_train_preset_named(o->preset);
    const int64_t tokens = t->material.source.vocabulary;
    config->vocab_size = preset != NULL && preset->vocabulary > tokens ? preset->vocabulary : tokens;
    config->hidden_size = o->hidden;
    config->num_hidden_layers = o->layers;
    config->delta.heads = o->heads;
    own->head_dim = o->head_dim;
    own->expand_k = (double)(o->heads * o->head_dim) / (double)o->hidden;
    own->expand_v = is_gated ? o->expand_v : o->expand_v * own->expand_k;
    config->delta.use_short_conv = o->conv > 0;
    config->delta.conv_size = o->conv > 0 ? o->conv : config->delta.conv_size;
    config->initializer_range = o->init > 0.0 ? o->init : config->initializer_range;
    config->delta.allow_neg_eigval = o->neg_eigval;
    config->delta.use_delta_rule = strcmp(o->method, carry_lm_recurrence_linear.name) != 0;
    config->tie_word_embeddings = o->tie;
    config->eos_token_id = t->material.source.end;
    config->bos_token_id = config->pad_token_id = -1;
    config->max_position_embeddings = t->material.length;
    return carry_lm_config_finish(t->ctx, config);
}

/* Makes a new adapter, or loads that of a folder or of the checkpoint from which the run resumes. */
static carry_status make_adapter(carry_training *t) {
    const carry_train_options *o = &t->options;
    carry_adapter_options adapter = {.rank = o->lora_rank,
                                     .alpha = o->lora_alpha > 0.0 ? o->lora_alpha : 2.0 * (double)o->lora_rank,
                                     .dropout = o->lora_dropout,
                                     .seed = (uint64_t)o->seed};
    (void)snprintf(adapter.targets, sizeof adapter.targets, "%s",
                   o->lora_targets[0] != '\0' ? o->lora_targets : "all-linear");
    const char *folder = t->loop.found.step >= 0 ? t->loop.found.path : o->adapter;
    return folder[0] != '\0' ? carry_lm_adapter_load(t->lm, folder, &adapter) : carry_lm_adapter_new(t->lm, &adapter);
}

static carry_status make_model(carry_training *t) {
    carry_lm_config config;
    CARRY_TRY(configure(t, &config));
    const int64_t tokens = t->material.source.vocabulary;
    if (tokens > config.vocab_size) {
        return carry_fail(t->ctx, CARRY_EARGUMENT,
                          "the %s has %" PRId64 " tokens and the model's vocabulary %" PRId64
                          ": the model must have at least as many",
                          t->material.task != NULL ? "task" : "tokenizer", tokens, config.vocab_size);
    }
    const char *folder = weights_folder(t);
    const int gpus = carry_device_count() - 1;
    const int device =
        t->hooks->device > 0 && t->hooks->spreads && gpus > 1 ? 1 + carry_comm_rank(t->comm) % gpus : t->hooks->device;
    CARRY_TRY(carry_lm_new_for(t->ctx, &t->lm, &config, device, folder));
    const bool adapts = carry_train_has_adapter(&t->options);
    CARRY_TRY(adapts ? CARRY_OK : carry_lm_want_gradients(t->lm));
    if (folder != NULL) {
        CARRY_TRY(carry_lm_load_weights(t->lm, folder));
        return adapts ? make_adapter(t) : CARRY_OK;
    }
    /* A factor on the initial decay rates, which are flash-linear-attention's: with those, most heads forget within
       100 tokens, too soon to recall the start of a row. */
    t->lm->forget = t->options.forget;
    const bool large = adapts || (device != 0 && t->lm->own.trained >= LARGE);
    CARRY_TRY((large ? carry_lm_init_there : carry_lm_init)(t->lm, (uint64_t)t->options.seed));
    return adapts ? make_adapter(t) : CARRY_OK;
}

/* Refuses --fp8 where its products would be slow. */
static carry_status check_fp8(const carry_training *t) {
    carry_device_properties about = {CARRY_INIT(carry_device_properties)};
    const char *why = NULL;
    if (t->options.fp8[0] == '\0' || t->hooks->slow_fp8 || carry_fp8_is_fast(t->ctx, t->hooks->device, false, &why)) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_device_properties_of(t->ctx, &about, t->hooks->device));
    return carry_fail(
        t->ctx, CARRY_EUNSUPPORTED,
        "--fp8 on %s: %s. It needs a GPU of compute capability 8.9 or newer, such as an H100 or H200, and "
        "cuBLASLt: choose one with --device, or omit --fp8",
        about.name, why);
}

/* Scales of a checkpoint are those of its list of products; with another list they are measured again. */
static carry_status open_fp8(carry_training *t) {
    if (t->options.fp8[0] == '\0') {
        return CARRY_OK;
    }
    CARRY_TRY(carry_lm_fp8_parse(t->ctx, &t->fp8, t->options.fp8));
    CARRY_TRY(carry_lm_fp8_open(&t->fp8, t->lm));
    if (t->loop.found.step >= 0) {
        carry_train_options before = carry_train_options_default();
        CARRY_TRY(carry_train_options_read(t->ctx, &before, carry_json_find(t->loop.found.document, "options")));
        if (strcmp(before.fp8, t->options.fp8) == 0) {
            CARRY_TRY(carry_checkpoint_load_scales(t->ctx, t->loop.found.path, t->fp8.scales));
            t->fp8.is_known = true;
        }
    }
    t->loop.scales = t->fp8.scales;
    return CARRY_OK;
}

static carry_status choose_steps(carry_training *t) {
    carry_train_options *o = &t->options;
    const double each = (double)o->batch * (double)o->length;
    double steps = o->steps > 0 ? (double)o->steps : STEPS;
    if (o->tokens > 0) {
        steps = ceil((double)o->tokens / each);
    } else if (o->epochs > 0.0) {
        steps = ceil(o->epochs * t->material.rows_of_epoch / (double)o->batch);
    }
    if (!(steps < 9e15)) {
        return carry_fail(t->ctx, CARRY_EARGUMENT, "%s has no epochs: say how many steps or tokens to train",
                          t->material.task != NULL ? "a task" : "this");
    }
    t->loop.schedule = (carry_schedule){.rate = o->rate, .final = o->final_rate, .steps = (int64_t)steps};
    CARRY_TRY(carry_schedule_parse(t->ctx, &t->loop.schedule.kind, o->schedule));
    const int64_t own = t->loop.schedule.steps / 20 < WARMUP_MOST ? t->loop.schedule.steps / 20 : WARMUP_MOST;
    t->loop.schedule.warmup = o->warmup >= 0 ? o->warmup : own;
    return CARRY_OK;
}

static carry_status open_batches(carry_training *t) {
    const carry_train_options *o = &t->options;
    t->rows = o->batch / t->grid.ranks / o->accumulate; /* whole: options were checked */
    CARRY_TRY(carry_batches_new(t->ctx, &t->batches, &t->material.source,
                                &(carry_batches_options){.rows = o->batch,
                                                         .length = t->material.length,
                                                         .rank = t->grid.rank,
                                                         .ranks = t->grid.ranks,
                                                         .part = t->grid.part,
                                                         .parts = t->grid.parts,
                                                         .shuffle = !t->material.source.is_endless,
                                                         .seed = (uint64_t)o->seed}));
    if (t->loop.found.step >= 0) {
        if (t->loop.found.source != t->material.crc) {
            return carry_fail(t->ctx, CARRY_EARGUMENT,
                              "the text is not the one that %s was trained on, so the stored position does not apply: "
                              "to train on another text, start from these weights with --model %s",
                              t->options.out, t->loop.found.path);
        }
        if (t->held_back != carry_train_holds_back(o) && t->material.can_hold_back) {
            return carry_fail(t->ctx, CARRY_EARGUMENT, "%s %s", t->options.out,
                              t->held_back ? "holds out a part of its text for evaluation: resume it with --eval-every "
                                             "above 0 and without --eval-data"
                                           : "was trained on the whole text, so none of it can be used for evaluation: "
                                             "name another text with --eval-data");
        }
        carry_batches_seek(t->batches, t->loop.position);
    }
    return CARRY_OK;
}

static carry_status open_pass(carry_training *t) {
    const carry_train_options *o = &t->options;
    carry_lm_pass_options pass = {
        .batch = t->rows, .tokens = t->material.length / t->grid.parts, .recompute = o->recompute};
    if (t->material.source.cuts != NULL) {
        pass.sequences = t->rows * t->material.source.most_cuts;
        pass.tokens *= t->rows;
        pass.batch = 1;
        t->cuts = calloc((size_t)pass.sequences + 1, sizeof *t->cuts);
        if (t->cuts == NULL) {
            return carry_fail(t->ctx, CARRY_EMEMORY, "out of memory: %" PRId64 " packed sequences", pass.sequences);
        }
    }
    CARRY_TRY(carry_dtype_parse(&pass.dtype, o->dtype));
    carry_comm *sequence = t->grid.sequence;
    if (sequence != NULL && t->lm->own.device != 0) {
        CARRY_TRY(carry_comm_open_device(sequence, &t->moving, t->lm->own.device, NULL));
        sequence = t->moving;
    }
    CARRY_TRY(carry_train_recurrence(t->ctx, o->method, sequence, &t->recurrence));
    pass.recurrence = t->recurrence.recurrence;
    pass.recurrence_options = t->recurrence.options;
    CARRY_TRY(open_fp8(t));
    pass.fp8 = t->fp8.scales.data != NULL ? &t->fp8 : NULL;
    CARRY_TRY(carry_lm_pass_new(t->lm, &t->pass, &pass));
    t->pass_options = pass;
    t->bytes = carry_lm_pass_memory(t->pass);
    CARRY_TRY(carry_training_count_memory(t));
    if (carry_lm_pass_take(t->pass, &t->memory) != CARRY_OK) {
        char why[384];
        (void)snprintf(why, sizeof why, "%s", carry_ctx_error(t->ctx));
        return carry_fail(t->ctx, CARRY_EMEMORY, "%s: use a smaller --batch, --accumulate or --recompute", why);
    }
    return CARRY_OK;
}

static carry_status open_loop(carry_training *t) {
    const carry_train_options *o = &t->options;
    const double tokens = (double)(t->rows * o->accumulate * t->material.length / t->grid.parts);
    carry_steps *loop = &t->loop;
    t->flops = carry_train_flops(t->lm);
    loop->trainee = &carry_training_trainee;
    loop->self = t;
    loop->log_every = o->log_every;
    loop->eval_every = o->eval_every;
    loop->save_every = o->save_every;
    loop->keep = o->keep;
    loop->keys = carry_train_keys;
    loop->options = o;
    loop->skip_limit = o->skip_limit;
    loop->no_graph = o->no_graph;
    loop->stop = t->hooks->stop;
    loop->seen_each = o->batch * o->length;
    loop->flops = t->flops * tokens;
    loop->items_each = tokens;
    const carry_optimizer_options adam = {.b1 = o->beta1,
                                          .b2 = o->beta2,
                                          .eps = o->epsilon,
                                          .decay = o->decay,
                                          .clip = o->clip,
                                          .narrow = strcmp(o->optimizer_state, "bf16") == 0,
                                          .momentum = strcmp(o->optimizer, "muon") == 0 ? o->momentum : 0.0};
    return carry_steps_open(loop, t->lm->adapter != NULL ? &t->lm->adapter->own : &t->lm->own, &adam);
}

/* On the CPU batches are used where they are made, without a feed. */
static carry_status open_feed(carry_training *t) {
    const int device = t->lm->own.device;
    const int64_t count = t->rows * t->options.accumulate * (t->material.length / t->grid.parts);
    const int64_t sequences = t->pass_options.sequences * t->options.accumulate;
    return device != 0 ? carry_feed_open(t->ctx, &t->feed, device, count, t->lm->config.vocab_size, sequences)
                       : CARRY_OK;
}

static void tell_start(const carry_training *t) {
    if (!t->loop.speaks || t->hooks->started == NULL) {
        return;
    }
    t->hooks->started(t->hooks->user,
                      &(carry_train_start){.lm = t->lm,
                                           .options = &t->options,
                                           .plan = carry_lm_pass_about(t->pass),
                                           .resumed = t->loop.found.step >= 0 ? t->loop.found.path : NULL,
                                           .step = t->loop.step,
                                           .steps = t->loop.schedule.steps,
                                           .tokens = t->options.batch * t->options.length,
                                           .flops = t->flops,
                                           .rows_of_epoch = t->material.rows_of_epoch,
                                           .ranks = t->grid.ranks,
                                           .parts = t->grid.parts,
                                           .memory = t->bytes,
                                           .memory_plan = &t->memory_plan});
}

/* Replaces --model by the folder that it names: hf:OWNER/NAME by the folder in the cache of the hub, the folder of a
   training run by its newest checkpoint. The folder's files are verified. */
static carry_status resolve_model(carry_training *t) {
    carry_train_options *o = &t->options;
    char found[CARRY_FILE_PATH];
    char folder[CARRY_FILE_PATH];
    if (o->model[0] == '\0' || (t->loop.found.step >= 0 && !carry_train_has_adapter(o))) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_hub_resolve(t->ctx, found, o->model));
    CARRY_TRY(carry_checkpoint_resolve(t->ctx, folder, found));
    return snprintf(o->model, sizeof o->model, "%s", folder) < (int)sizeof o->model
               ? CARRY_OK
               : carry_fail(t->ctx, CARRY_ESIZE, "the path %.60s... is too long", folder);
}

carry_status carry_training_open(carry_training *t) {
    carry_train_options *o = &t->options;
    carry_steps_init(&t->loop, t->comm, o->out, &t->hooks->sink);
    CARRY_TRY(carry_train_options_check(t->ctx, o, carry_comm_size(t->comm)));
    CARRY_TRY(check_fp8(t));
    CARRY_TRY(carry_grid_open(t->comm, &t->grid, (int)o->sequence_ranks));
    CARRY_TRY(carry_steps_find(&t->loop, t->hooks->resume));
    CARRY_TRY(resolve_model(t));
    CARRY_TRY(find_held_back(t));
    const char *has_tokenizer = t->loop.found.step >= 0                          ? t->loop.found.path
                                : o->model[0] != '\0' && o->tokenizer[0] == '\0' ? o->model
                                                                                 : NULL;
    CARRY_TRY(carry_material_open(t->comm, &t->material, o, has_tokenizer));
    CARRY_TRY(make_model(t));
    CARRY_TRY(choose_steps(t));
    CARRY_TRY(open_batches(t));
    CARRY_TRY(open_pass(t));
    CARRY_TRY(open_loop(t));
    CARRY_TRY(open_feed(t));
    tell_start(t);
    return CARRY_OK;
}

void carry_training_close(carry_training *t) {
    carry_steps_close(&t->loop);
    carry_feed_close(&t->feed);
    carry_batches_free(t->batches);
    carry_batches_free(t->evaluation);
    const int device = t->lm != NULL ? t->lm->own.device : 0;
    carry_device_free(t->ctx, device, t->memory);
    carry_device_free(t->ctx, device, t->logits.data);
    carry_lm_pass_free(t->pass);
    carry_lm_fp8_close(&t->fp8, t->lm);
    carry_comm_close(t->moving);
    carry_lm_free(t->lm);
    carry_material_close(&t->material);
    carry_grid_close(&t->grid);
    free(t->logits_seen);
    free(t->chosen);
    free(t->cuts);
}
