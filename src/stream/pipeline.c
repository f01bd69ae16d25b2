#include "stream/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/memory.h"
#include "model/dit/dit_fp8.h"
#include "stream/handshake.h"
#include "stream/mesh.h"
#include "stream/stage.h"

#define WEIGHTS_SEED 1
#define FIXED_BYTES 4096 /* upper limit of a message's size without its tensors; there are at most four specs */
#define CHANNELS 16      /* of latents, fixed by the contract in envelope.h */
#define LONGEST 86400.0  /* maximum slow_stage0 and slow_stage1, in seconds */

/* This rank's part of the pipeline. */
typedef struct part {
    carry_ctx *ctx;
    const carry_pipeline_options *options;
    const carry_pipeline_hooks *hooks;
    carry_pipeline_groups groups;
    carry_dit_config config;
    int mesh_ranks;
    bool is_stage, is_mesh, is_leader;
    carry_dit *dit;
    carry_dit_loras *loras;
    carry_generator *generator;
    carry_mesh *mesh;
    carry_stage *stage;
    carry_link *link, *leader_link; /* stage 0's end; the leader's end */
    bool is_closed;
} part;

const char *carry_recompute_name(carry_recompute recompute) {
    static const char *const names[] = {"off", "anchor", "latent"};
    return names[recompute];
}

static int64_t nearest(int64_t size, int64_t unit) {
    const int64_t most = unit * CARRY_DIT_POSITIONS;
    const int64_t near = size > most ? most : (size + unit / 2) / unit * unit;
    return near < unit ? unit : near;
}

static carry_status check_size(carry_ctx *ctx, const carry_pipeline_options *o, const carry_dit_config *config) {
    const int64_t up = 8 * config->patch[1];
    const int64_t across = 8 * config->patch[2];
    if (o->height < 1 || o->width < 1 || o->height % up != 0 || o->width % across != 0 ||
        o->height / up > CARRY_DIT_POSITIONS || o->width / across > CARRY_DIT_POSITIONS) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "pictures of %lld x %lld are not made of up to %d patches of %lld x %lld a side: %lld x %lld "
                          "is the nearest that works",
                          (long long)o->width, (long long)o->height, CARRY_DIT_POSITIONS, (long long)across,
                          (long long)up, (long long)nearest(o->width, across), (long long)nearest(o->height, up));
    }
    return CARRY_OK;
}

static bool is_wait(double seconds) {
    return isfinite(seconds) && seconds >= 0.0 && seconds <= LONGEST;
}

static carry_status check_recompute(carry_ctx *ctx, const carry_pipeline_options *o) {
    const int64_t room = o->window - (o->chunk > o->sink ? o->chunk : o->sink);
    if (o->recompute == CARRY_RECOMPUTE_OFF) {
        return CARRY_OK;
    }
    if (o->context < o->chunk || o->context % o->chunk != 0 || o->context > room ||
        o->context / o->chunk > CARRY_DIT_CHUNKS) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a recompute of %lld frames: chunks of %lld, up to %lld of them beside the chunk in a window "
                          "of %lld",
                          (long long)o->context, (long long)o->chunk, (long long)(room / o->chunk),
                          (long long)o->window);
    }
    return CARRY_OK;
}

carry_status carry_pipeline_check(carry_ctx *ctx, const carry_pipeline_options *o, carry_dit_config *config,
                                  int ranks) {
    const int mesh = o->with_stage && ranks > 1 ? ranks - 1 : ranks;
    if (o->model != NULL) {
        CARRY_TRY(carry_dit_config_read(ctx, config, o->model));
    } else {
        *config = o->config;
    }
    CARRY_TRY(carry_dit_config_check(ctx, config, mesh));
    if (config->in_dim != CHANNELS || config->out_dim != CHANNELS) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED,
                          "a model of latents with %lld channels in and %lld out: codecs and envelopes have %d",
                          (long long)config->in_dim, (long long)config->out_dim, CHANNELS);
    }
    CARRY_TRY(check_size(ctx, o, config));
    if (o->depth < 1 || o->depth > CARRY_STAGE_DEPTH) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a depth of %d: 1 to %d envelopes are under way", o->depth,
                          CARRY_STAGE_DEPTH);
    }
    if (o->chunk < 1 || o->sink < 0 || o->window > CARRY_DIT_POSITIONS || o->chunk > o->window ||
        o->sink > o->window - o->chunk) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "a window of %lld frames with a sink of %lld and chunks of %lld: the window has both, and at "
                          "most %d",
                          (long long)o->window, (long long)o->sink, (long long)o->chunk, CARRY_DIT_POSITIONS);
    }
    if (!isfinite(o->shift) || o->shift <= 0.0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a shift of %g: expected a number above 0", o->shift);
    }
    if (!is_wait(o->slow_stage0) || !is_wait(o->slow_stage1)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "stages slowed by %g and %g s: 0 to %g", o->slow_stage0, o->slow_stage1,
                          LONGEST);
    }
    if (!(o->fps >= 0.0) || !isfinite(o->fps) || o->chunks < 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "%g frames a second, %lld chunks: both are 0 (any) or more", o->fps,
                          (long long)o->chunks);
    }
    if (o->batch < 0 || o->batch > CARRY_GENERATOR_BATCH || (o->batch > 0 && o->recompute != CARRY_RECOMPUTE_OFF)) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a stream batch of %lld steps: up to %d, and without a recompute",
                          (long long)o->batch, CARRY_GENERATOR_BATCH);
    }
    if (o->multiprocessors != 0 && (o->multiprocessors < 0 || o->device == 0 || !o->with_stage)) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%d multiprocessors for decoding: it needs a GPU and a rank of its own for stage 0",
                          o->multiprocessors);
    }
    return check_recompute(ctx, o);
}

static carry_status message_sizes(const part *p, size_t *envelope, size_t *result) {
    const carry_pipeline_options *o = p->options;
    const int64_t h = o->height / 8;
    const int64_t w = o->width / 8;
    size_t chunk = 0;
    size_t context = 0;
    size_t text = 0;
    if (!carry_size_product(&chunk, (const int64_t[]){p->config.in_dim, o->chunk, h, w}, 4, sizeof(uint16_t)) ||
        !carry_size_product(&context, (const int64_t[]){p->config.in_dim, o->context, h, w}, 4, sizeof(uint16_t)) ||
        !carry_size_product(&text, (const int64_t[]){p->config.text_len, p->config.text_dim}, 2, sizeof(uint16_t)) ||
        !carry_size_add(&chunk, chunk, FIXED_BYTES) || !carry_size_add(&context, context, chunk) ||
        !carry_size_add(&context, context, text) || context > CARRY_ENVELOPE_BYTES) {
        return carry_fail(p->ctx, CARRY_ESIZE,
                          "pictures of %lld x %lld in chunks of %lld frames need envelopes of "
                          "more than %zu bytes",
                          (long long)o->width, (long long)o->height, (long long)o->chunk, CARRY_ENVELOPE_BYTES);
    }
    *envelope = context;
    *result = chunk;
    return CARRY_OK;
}

/* For stage 0 and the leader on one rank: stage 0 checks for new prompts between two steps. */
static carry_status look_late(void *user) {
    const part *p = user;
    return p->stage != NULL ? carry_stage_late(p->stage) : CARRY_OK;
}

static carry_status open_generator(part *p, size_t envelope_most) {
    const carry_pipeline_options *o = p->options;
    const int64_t context = o->recompute != CARRY_RECOMPUTE_OFF ? o->context : 0;
    const carry_generator_options generator = {.height = o->height / 8,
                                               .width = o->width / 8,
                                               .chunk = o->chunk,
                                               .window = o->window,
                                               .sink = o->sink,
                                               .context = context,
                                               .batch = o->batch,
                                               .shift = o->shift,
                                               .dtype = o->device != 0 ? CARRY_BF16 : CARRY_F32,
                                               .no_graphs = o->no_graphs,
                                               .multiprocessors = o->multiprocessors};
    carry_mesh_options mesh = {.channels = p->config.in_dim,
                               .height = o->height / 8,
                               .width = o->width / 8,
                               .chunk = o->chunk,
                               .context = context,
                               .text_len = p->config.text_len,
                               .text_dim = p->config.text_dim,
                               .envelope_most = envelope_most,
                               .slow = o->slow_stage1,
                               .fail_at = o->fail_memory,
                               .look = p->is_stage ? look_late : NULL,
                               .user = p};
    carry_comm *comm;
    CARRY_TRY(carry_pipeline_mesh(&p->groups, &comm));
    CARRY_TRY(carry_dit_new_for(p->ctx, &p->dit, &p->config, p->mesh_ranks > 1 ? comm : NULL, o->device, o->model,
                                generator.dtype));
    CARRY_TRY(o->model != NULL ? carry_dit_load(p->dit, o->model) : carry_dit_init(p->dit, WEIGHTS_SEED));
    CARRY_TRY(o->loras > 0 ? carry_dit_loras_new(p->dit, &p->loras, o->lora, o->loras) : CARRY_OK);
    CARRY_TRY(o->fp8 ? carry_dit_fp8_open(p->dit) : CARRY_OK);
    CARRY_TRY(carry_generator_new(p->dit, &p->generator, &generator));
    mesh.loras = p->loras;
    return carry_mesh_new(p->ctx, &p->mesh, comm, p->generator, p->dit, &mesh);
}

static carry_status open_links(part *p, size_t envelope, size_t result) {
    const carry_link_options stage = {
        .depth = p->options->depth, .out_most = envelope, .in_most = result, .group = "stage0"};
    const carry_link_options leader = {
        .depth = p->options->depth, .out_most = result, .in_most = envelope, .group = "mesh"};
    if (p->is_stage && p->is_leader) {
        return carry_link_pair(p->ctx, &p->link, &p->leader_link, &stage);
    }
    if (p->is_stage) {
        return carry_link_open(p->groups.world, &p->link, 1, &stage);
    }
    return p->is_leader ? carry_link_open(p->groups.world, &p->leader_link, 0, &leader) : CARRY_OK;
}

static carry_status open_part(part *p) {
    size_t envelope;
    size_t result;
    CARRY_TRY(message_sizes(p, &envelope, &result));
    CARRY_TRY(open_links(p, envelope, result));
    if (p->is_mesh) {
        CARRY_TRY(open_generator(p, envelope));
    }
    if (p->is_stage) {
        CARRY_TRY(carry_stage_open(p->ctx, &p->stage, p->options, p->hooks, &p->config, p->link, p->groups.with_stage,
                                   carry_comm_deadline(p->groups.world)));
        p->stage->figures.mesh_ranks = p->mesh_ranks;
    }
    if (p->options->text_encoder != NULL && p->options->device != 0) {
        CARRY_TRY(
            carry_barrier(p->groups.world)); /* all generators have allocated: memory that is free now stays free */
    }
    return p->is_stage ? carry_stage_open_text(p->stage) : CARRY_OK;
}

static void close_part(part *p) {
    carry_stage_close(p->stage);
    carry_mesh_free(p->mesh);
    carry_generator_free(p->generator);
    carry_dit_loras_free(p->loras);
    carry_dit_free(p->dit);
    carry_link_free(p->link);
    carry_link_free(p->leader_link);
    carry_pipeline_end(&p->groups);
}

/* For stage 0 and the leader on one rank: while one waits, the other works. */
static carry_status take_turn(void *user) {
    part *p = user;
    return carry_mesh_turn(p->mesh, p->leader_link, &p->is_closed);
}

static carry_status run_part(part *p) {
    if (!p->is_stage) {
        return p->is_leader ? carry_mesh_lead(p->mesh, p->leader_link) : carry_mesh_work(p->mesh);
    }
    if (p->is_leader) {
        carry_link_set_turn(p->link, take_turn, p);
    }
    return carry_stage_run(p->stage);
}

/* Runs the handshake, once everything has been loaded. Options that change the result but have no field of their own
   in the handshake are compared as part of the text `build`. */
static carry_status shake_hands(part *p) {
    const carry_pipeline_options *o = p->options;
    char build[64];
    (void)snprintf(build, sizeof build, "%s%s %lld%s, batch %lld, shift %.9g, %s", o->fp8 ? "fp8 " : "",
                   carry_recompute_name(o->recompute),
                   (long long)(o->recompute != CARRY_RECOMPUTE_OFF ? o->context : 0), o->clean_pass ? ", clean" : "",
                   (long long)o->batch, o->shift, p->groups.with_stage ? "pipeline" : "mesh");
    const carry_handshake mine = {
        .mesh = p->mesh_ranks,
        .model = carry_handshake_model(&p->config),
        .dtype = CARRY_F32,
        .cache =
            {.height = o->height / 8, .width = o->width / 8, .chunk = o->chunk, .window = o->window, .sink = o->sink},
        .depth = o->depth,
        .build = build,
        .has_weights = p->is_mesh && p->mesh_ranks > 1, /* a single rank has no other to compare with */
        .weights = p->is_mesh && p->mesh_ranks > 1 ? carry_dit_common_fingerprint(p->dit) : 0,
    };
    return carry_handshake_run(p->groups.world, &mine);
}

carry_status carry_pipeline_run(carry_comm *world, const carry_pipeline_options *options,
                                const carry_pipeline_hooks *hooks, carry_stream_figures *figures) {
    const int rank = carry_comm_rank(world);
    part p = {.ctx = carry_comm_ctx(world), .options = options, .hooks = hooks};
    CARRY_TRY(carry_pipeline_check(p.ctx, options, &p.config, carry_comm_size(world)));
    CARRY_TRY(carry_pipeline_split(world, &p.groups, options->with_stage));
    p.mesh_ranks = carry_comm_size(world) - (p.groups.with_stage ? 1 : 0);
    p.is_stage = rank == 0;
    p.is_mesh = p.groups.mesh != NULL;
    p.is_leader = rank == (p.groups.with_stage ? 1 : 0);
    carry_status status = open_part(&p);
    status = status == CARRY_OK ? shake_hands(&p) : status;
    if (status == CARRY_OK) {
        carry_pipeline_begin(&p.groups);
        status = run_part(&p);
    }
    if (p.stage != NULL && figures != NULL) {
        *figures = p.stage->figures;
    }
    close_part(&p);
    return status;
}
