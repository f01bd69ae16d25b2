/* The table of options for training a video transformer. */
#include "train/dit/dit_options.h"

#include <string.h>

#include "core/error.h"
#include "core/nearest.h"
#include "core/tensor.h"

#define MOST 9e15
#define AT(field) offsetof(carry_dit_train_options, field), sizeof(((carry_dit_train_options *)0)->field)
#define WHOLE(name, field, least, most, fixed, help) \
    { name, CARRY_TRAIN_WHOLE, AT(field), least, most, fixed, "N", help }
#define REAL(name, field, least, most, fixed, help) \
    { name, CARRY_TRAIN_REAL, AT(field), least, most, fixed, "X", help }
#define TEXT(name, field, fixed, argument, help) \
    { name, CARRY_TRAIN_TEXT, AT(field), 0, 0, fixed, argument, help }

const carry_train_key carry_dit_train_keys[] = {
    TEXT("config", config, true, "NAME", "shape of the model: shapes"),
    TEXT("model", model, true, "DIR", "start from the weights of this model"),
    WHOLE("dim", dim, 12, 1 << 16, true, "width (from --config)"),
    WHOLE("layers", layers, 1, 4096, true, "blocks (from --config)"),
    WHOLE("heads", heads, 1, 4096, true, "heads (from --config)"),
    WHOLE("ffn", ffn, 1, 1 << 18, true, "width of the FFN (from --config, or 4 dim)"),
    WHOLE("size", size, 16, 512, true, "width and height of the pictures in pixels (64)"),
    WHOLE("chunk", chunk, 1, 64, true, "frames per chunk (from --config)"),
    WHOLE("window", window, 1, 1024, true, "frames that a chunk sees, including its own (from --config)"),
    WHOLE("chunks", chunks, 1, 64, true, "chunks per video (4)"),
    REAL("speed", speed, 0.1, 16, true, "pixels per frame that shapes move (2)"),
    REAL("shift", shift, 0.01, 100, true, "timestep shift of the sampler (from --config)"),
    WHOLE("batch", batch, 1, MOST, true, "videos per step, over all ranks (16)"),
    WHOLE("steps", steps, 1, MOST, false, "total steps (1000)"),
    REAL("rate", rate, 0, 10, false, "learning rate (1e-3)"),
    REAL("final-rate", final_rate, 0, 1, false, "rate of the last step, as a share of --rate (0.02)"),
    WHOLE("warmup", warmup, 0, MOST, false, "steps until the highest rate (100)"),
    REAL("clip", clip, 0, MOST, false, "clip gradients to this norm; 0: no clipping (1)"),
    REAL("decay", decay, 0, 10, false, "weight decay (0.01)"),
    REAL("beta1", beta1, 0, 0.999999, false, "beta1 of AdamW (0.9)"),
    REAL("beta2", beta2, 0, 0.999999, false, "beta2 of AdamW (0.99)"),
    REAL("average", average, 0, 0.999999, false, "factor of the running average of weights, which is what is saved"),
    WHOLE("seed", seed, 0, MOST, true, "seed of weights and videos (1)"),
    REAL("past-noise", past_noise, 0, 10, false, "most noise added to the past that a chunk sees (0.2)"),
    WHOLE("own-past", own_past, 0, MOST, false, "in every N-th step the model generates the past; 0: never (2)"),
    REAL("changes", changes, 0, 1, false, "share of videos whose caption changes on the way (0.5)"),
    REAL("unnamed", unnamed, 0, 1, false, "share of videos without a caption (0.1)"),
    TEXT("out", out, false, "DIR", "folder for checkpoints and the final model"),
    TEXT("dtype", dtype, false, "TYPE", "type of the model in DIR: bf16 (default), f32, f16; checkpoints are f32"),
    WHOLE("save-every", save_every, 1, MOST, false, "steps between checkpoints (500)"),
    WHOLE("keep", keep, 1, MOST, false, "checkpoints to keep (1)"),
    WHOLE("log-every", log_every, 1, MOST, false, "steps between progress lines (20)"),
    WHOLE("eval-every", eval_every, 0, MOST, false, "steps between evaluations; 0: only the last (0)"),
    {0},
};

carry_dit_train_options carry_dit_train_default(void) {
    return (carry_dit_train_options){.config = "shapes",
                                     .size = 64,
                                     .chunks = 4,
                                     .speed = 2.0,
                                     .batch = 16,
                                     .steps = 1000,
                                     .rate = 1e-3,
                                     .final_rate = 0.02,
                                     .clip = 1.0,
                                     .decay = 0.01,
                                     .beta1 = 0.9,
                                     .beta2 = 0.99,
                                     .average = 0.999,
                                     .warmup = 100,
                                     .seed = 1,
                                     .past_noise = 0.2,
                                     .own_past = 2,
                                     .changes = 0.5,
                                     .unnamed = 0.1,
                                     .dtype = "bf16",
                                     .save_every = 500,
                                     .keep = 1,
                                     .log_every = 20};
}

carry_status carry_dit_train_config(carry_ctx *ctx, carry_dit_config *c, const carry_dit_train_options *o) {
    if (o->model[0] != '\0') {
        CARRY_TRY(carry_dit_config_read(ctx, c, o->model));
    } else {
        CARRY_TRY(carry_dit_config_named(ctx, c, o->config));
    }
    c->dim = o->dim > 0 ? o->dim : c->dim;
    c->ffn_dim = o->ffn > 0 ? o->ffn : o->dim > 0 ? 4 * o->dim : c->ffn_dim;
    c->num_layers = o->layers > 0 ? o->layers : c->num_layers;
    c->num_heads = o->heads > 0 ? o->heads : c->num_heads;
    c->chunk_frames = o->chunk > 0 ? o->chunk : c->chunk_frames > 0 ? c->chunk_frames : 3;
    c->window_frames = o->window > 0 ? o->window : c->window_frames > 0 ? c->window_frames : 4 * c->chunk_frames;
    c->sink_frames = 0;
    c->shift = o->shift > 0.0 ? o->shift : c->shift > 0.0 ? c->shift : 1.0;
    return carry_dit_config_check(ctx, c, 1);
}

carry_status carry_dit_train_check(carry_ctx *ctx, const carry_dit_train_options *o, int ranks) {
    carry_dit_config c;
    carry_dtype dtype;
    CARRY_TRY(carry_dit_train_config(ctx, &c, o));
    if (c.num_layers * c.dim * c.dim > (int64_t)1 << 28) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%lld blocks of width %lld are too large to be trained on shapes: --config shapes is meant",
                          (long long)c.num_layers, (long long)c.dim);
    }
    if (carry_dtype_parse(&dtype, o->dtype) != CARRY_OK || !carry_dtype_is_real(dtype)) {
        char hint[CARRY_NEAREST_HINT];
        return carry_fail(ctx, CARRY_EARGUMENT, "there is no type '%s' for weights: f32, bf16 or f16 is accepted%s",
                          o->dtype,
                          carry_nearest_among(hint, o->dtype, (const char *const[]){"f32", "bf16", "f16", NULL}));
    }
    if (o->size % 16 != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a side of %lld pixels is not a multiple of 16: %lld and %lld are",
                          (long long)o->size, (long long)(o->size / 16 * 16), (long long)(o->size / 16 * 16 + 16));
    }
    if (ranks > 0 && o->batch % ranks != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a batch of %lld videos cannot be split over %d ranks: give a multiple of %d",
                          (long long)o->batch, ranks, ranks);
    }
    return CARRY_OK;
}
