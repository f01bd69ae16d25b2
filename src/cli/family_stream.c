/* A stream as a problem of the lab. The methods are the topologies, and a run is a whole stream on threads of this
   process. It is in src/cli because the lab and streaming do not depend on each other.

       stream:mesh1:chunks40:depth2:slow0=match

   A sample is the median period of one stream. The generator has the same number of ranks in either topology:
   "pipeline" has one more rank for stage 0; with "mesh" rank 0 is also stage 0. The pictures must therefore be the
   same bit for bit, which is checked. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/family_stream.h"
#include "cli/stream_model.h"
#include "comm/ranks.h"
#include "core/context.h"
#include "core/memory.h"
#include "bench/collective.h"
#include "bench/sample.h"
#include "stream/stage.h"

#define KEPT 64 /* the figures of a method are medians over this many of its newest streams */
/* Chunks of the warm-up stream, which also measures the delay for slow0=match: enough for medians of the stage
   times. */
#define WARM_UP 6
#define MOST_UNITS 4096 /* multiprocessors of a GPU */
#define COMPARED 6      /* number of compared chunks: enough for a recompute of two chunks to begin */

enum { PIPELINE, MESH, TOPOLOGIES };
static const char *const topologies[TOPOLOGIES] = {"pipeline", "mesh"};

/* The results of the streams of a topology. */
typedef struct record {
    int streams;
    double score[KEPT], slower[KEPT];
    double denoise[KEPT], recompute[KEPT], clean[KEPT], decode[KEPT];
    double memory; /* maximum bytes that the process held after a chunk */
} record;

typedef struct instance {
    carry_ctx *ctx;
    stream_model model;
    carry_pipeline_options options;
    carry_control_state start;
    int mesh;
    bool matches; /* stage 0 is slowed to the time of stage 1 measured in the warm-up */
    double matched;
    char only[CARRY_PROBLEM_WORD], about[192], codec[CARRY_FILE_PATH];
    int topology;
    record of[TOPOLOGIES];
} instance;

/* The frames in the order shown. */
typedef struct pictures {
    float *pixel;
    size_t count, room;
} pictures;

/* A running stream. */
typedef struct session {
    const instance *it;
    carry_ctx *ctx; /* context of rank 0 */
    carry_pipeline_options options;
    carry_controls *controls;
    carry_stream_figures figures;
    double memory;
    pictures *kept;           /* NULL: pictures are not kept */
    const pictures *expected; /* NULL: nothing to compare with */
    size_t seen;              /* pixels compared so far */
    double apart, largest;
} session;

static const char takes[] =
    "meshN (ranks that share the generator; pipeline has one more), chunksN, depthN, contextN "
    "(frames of a recompute); recompute=off, anchor or latent; slow0=MS or match, slow1=MS; "
    "size=WxH, windowN, clean=off (no pass at t = 0), multiprocessorsN (of a GPU, for decoding; the generator has the "
    "others); model=FOLDER or config=NAME, codec=FOLDER, algo=TOPOLOGY, "
    "device=cpu or cuda";

static const char *method(int index) {
    return index >= 0 && index < TOPOLOGIES ? topologies[index] : NULL;
}

static void close_instance(void *given) {
    free(given);
}

static carry_status read_wait(carry_ctx *ctx, double *seconds, carry_problem *problem, const char *key) {
    const char *text = carry_problem_setting(problem, key);
    char *end = NULL;
    *seconds = text != NULL ? 1e-3 * strtod(text, &end) : 0.0;
    return text == NULL || (end != text && *end == '\0')
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EARGUMENT, "%s=%s in '%s': expected milliseconds%s", key, text, problem->text,
                            strcmp(key, "slow0") == 0 ? ", or match" : "");
}

static carry_status read_clean(carry_ctx *ctx, carry_pipeline_options *o, carry_problem *problem) {
    const char *text = carry_problem_setting(problem, "clean");
    if (text != NULL && strcmp(text, "off") != 0 && strcmp(text, "on") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "clean=%s in '%s': expected on or off", text, problem->text);
    }
    o->clean_pass = o->clean_pass && (text == NULL || strcmp(text, "on") == 0);
    return CARRY_OK;
}

static carry_status read_recompute(carry_ctx *ctx, carry_pipeline_options *o, carry_problem *problem) {
    const char *text = carry_problem_setting(problem, "recompute");
    const int64_t context = carry_problem_size(problem, "context", 0);
    int mode = CARRY_RECOMPUTE_OFF;
    while (text != NULL && mode <= CARRY_RECOMPUTE_LATENT &&
           strcmp(text, carry_recompute_name((carry_recompute)mode)) != 0) {
        mode++;
    }
    if (mode > CARRY_RECOMPUTE_LATENT) {
        return carry_fail(ctx, CARRY_EARGUMENT, "recompute=%s in '%s': expected off, anchor or latent", text,
                          problem->text);
    }
    if (mode == CARRY_RECOMPUTE_OFF && context > 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "context%lld in '%s': it needs recompute=latent or anchor",
                          (long long)context, problem->text);
    }
    stream_set_recompute(o, (carry_recompute)mode, context);
    return CARRY_OK;
}

static carry_status read_numbers(instance *it, carry_problem *problem) {
    carry_pipeline_options *o = &it->options;
    const int64_t mesh = carry_problem_size(problem, "mesh", 1);
    const int64_t depth = carry_problem_size(problem, "depth", 2);
    const int64_t part = carry_problem_size(problem, "multiprocessors", 0);
    o->chunks = carry_problem_size(problem, "chunks", 30);
    if (o->chunks <= CARRY_OVERLAP_WARMUP || o->chunks > CARRY_OVERLAP_KEPT) {
        return carry_fail(it->ctx, CARRY_ESIZE, "chunks%lld in '%s': the first %d warm up, so %d to %d are measured",
                          (long long)o->chunks, problem->text, CARRY_OVERLAP_WARMUP, CARRY_OVERLAP_WARMUP + 1,
                          CARRY_OVERLAP_KEPT);
    }
    if (mesh >= CARRY_RANKS) { /* both are stored as int */
        return carry_fail(it->ctx, CARRY_ESIZE, "mesh%lld in '%s': a mesh has at most %d ranks here", (long long)mesh,
                          problem->text, CARRY_RANKS - 1);
    }
    if (depth > CARRY_STAGE_DEPTH) {
        return carry_fail(it->ctx, CARRY_EARGUMENT, "depth%lld in '%s': 1 to %d envelopes are under way",
                          (long long)depth, problem->text, CARRY_STAGE_DEPTH);
    }
    if (part > MOST_UNITS) {
        return carry_fail(it->ctx, CARRY_ESIZE, "multiprocessors%lld in '%s': no GPU has more than %d", (long long)part,
                          problem->text, MOST_UNITS);
    }
    it->mesh = (int)mesh;
    o->depth = (int)depth;
    o->multiprocessors = (int)part;
    return CARRY_OK;
}

static carry_status read_problem(instance *it, carry_problem *problem) {
    carry_pipeline_options *o = &it->options;
    carry_dit_config config;
    int device;
    const char *model = carry_problem_setting(problem, "model");
    const char *named = carry_problem_setting(problem, "config");
    const char *size = carry_problem_setting(problem, "size");
    const char *slow = carry_problem_setting(problem, "slow0");
    const char *only = carry_problem_setting(problem, "algo");
    const char *codec = carry_problem_setting(problem, "codec");
    if (model != NULL && named != NULL) {
        return carry_fail(it->ctx, CARRY_EARGUMENT, "'%s' names a model and a config: one of them", problem->text);
    }
    CARRY_TRY(stream_model_choose(it->ctx, &it->model, model, named));
    *o = stream_model_options(&it->model);
    it->start = stream_model_controls(&it->model);
    CARRY_TRY(read_numbers(it, problem));
    CARRY_TRY(read_recompute(it->ctx, o, problem));
    it->matches = slow != NULL && strcmp(slow, "match") == 0;
    if (!it->matches) {
        CARRY_TRY(read_wait(it->ctx, &o->slow_stage0, problem, "slow0"));
    }
    CARRY_TRY(read_wait(it->ctx, &o->slow_stage1, problem, "slow1"));
    CARRY_TRY(carry_problem_device(it->ctx, &device, problem));
    (void)snprintf(it->only, sizeof it->only, "%s", only != NULL ? only : "");
    (void)snprintf(it->codec, sizeof it->codec, "%s", codec != NULL ? codec : "");
    o->codec = codec != NULL ? it->codec : o->codec;
    CARRY_TRY(read_clean(it->ctx, o, problem));
    o->window = carry_problem_size(problem, "window", o->window);
    CARRY_TRY(carry_problem_finish(it->ctx, problem, takes));
    o->device = device;
    if (!stream_set_size(o, size != NULL ? size : "64x64")) {
        return carry_fail(it->ctx, CARRY_EARGUMENT,
                          "size=%s in '%s': expected a width and a height in pixels such as 64x64", size,
                          problem->text);
    }
    o->with_stage = true;
    return carry_pipeline_check(it->ctx, o, &config, it->mesh + 1);
}

static carry_status choose(void *given, const char *wanted) {
    instance *it = given;
    const carry_pipeline_options *o = &it->options;
    int at = PIPELINE;
    while (wanted != NULL && at < TOPOLOGIES && strcmp(topologies[at], wanted) != 0) {
        at++;
    }
    if (at == TOPOLOGIES) {
        return carry_fail(it->ctx, CARRY_ENOTFOUND, "there is no topology '%.40s': a stream has pipeline and mesh",
                          wanted);
    }
    it->topology = at;
    (void)snprintf(it->about, sizeof it->about,
                   "%s: %sa mesh of %d, up to %d envelopes under way; %lld chunks of %lld frames, %lld x %lld",
                   topologies[at], at == PIPELINE ? "stage 0 and " : "stage 0 on rank 0 of ", it->mesh, o->depth,
                   (long long)o->chunks, (long long)o->chunk, (long long)o->width, (long long)o->height);
    return CARRY_OK;
}

static carry_status open_instance(carry_ctx *ctx, void **opened, carry_problem *problem, uint64_t seed, int copies) {
    (void)copies; /* a stream makes its own input data */
    *opened = NULL;
    instance *it = calloc(1, sizeof *it);
    if (it == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a stream");
    }
    it->ctx = ctx;
    carry_status status = read_problem(it, problem);
    it->start.seed = seed & INT64_MAX;
    if (status == CARRY_OK) {
        status = choose(it, it->only[0] != '\0' ? it->only : NULL);
    }
    if (status != CARRY_OK) {
        close_instance(it);
        return status;
    }
    *opened = it;
    return CARRY_OK;
}

static carry_status plan_instance(carry_ctx *ctx, void **opened, carry_problem *problem, bool measure) {
    (void)measure; /* pipeline is always chosen; mesh is only compared with it */
    return open_instance(ctx, opened, problem, 1, 0);
}

static double bytes(const void *given) {
    (void)given;
    return INFINITY; /* never more than one set */
}

static const char *chosen(const void *given) {
    return topologies[((const instance *)given)->topology];
}

static const char *about_plan(const void *given) {
    return ((const instance *)given)->about;
}

static const char *only(const void *given) {
    const instance *it = given;
    return it->only[0] != '\0' ? it->only : NULL;
}

static carry_status keep_pictures(const session *s, const float *pixels, size_t count) {
    pictures *to = s->kept;
    if (to->room - to->count < count) {
        const size_t room = 2 * (to->count + count);
        float *more = realloc(to->pixel, room * sizeof *more);
        if (more == NULL) {
            return carry_fail(s->ctx, CARRY_EMEMORY, "out of memory: the pictures of %d chunks", COMPARED);
        }
        to->pixel = more;
        to->room = room;
    }
    memcpy(to->pixel + to->count, pixels, count * sizeof *pixels);
    to->count += count;
    return CARRY_OK;
}

static void compare_pictures(session *s, const float *pixels, size_t count) {
    const pictures *with = s->expected;
    for (size_t i = 0; i < count; i++, s->seen++) {
        if (s->seen >= with->count) {
            s->apart = NAN;
            continue;
        }
        uint32_t bits[2];
        const double expected = with->pixel[s->seen];
        memcpy(&bits[0], &with->pixel[s->seen], sizeof bits[0]);
        memcpy(&bits[1], &pixels[i], sizeof bits[1]);
        s->largest = fmax(s->largest, fabs(expected));
        if (bits[0] != bits[1]) { /* different bits always count as a difference, even for -0 and NaN */
            const double apart = fabs((double)pixels[i] - expected);
            s->apart = isnan(apart) || isnan(s->apart) ? NAN : fmax(s->apart, fmax(apart, DBL_MIN));
        }
    }
}

static carry_status hear_frames(void *user, carry_tensor frames, uint64_t chunk_index, uint64_t cache_epoch) {
    session *s = user;
    const size_t count = (size_t)(frames.shape[0] * frames.stride[0]);
    (void)chunk_index;
    (void)cache_epoch;
    if (s->expected != NULL) {
        compare_pictures(s, frames.data, count);
    }
    return s->kept != NULL ? keep_pictures(s, frames.data, count) : CARRY_OK;
}

static void hear_figures(void *user, const carry_stream_figures *figures) {
    session *s = user;
    (void)figures;
    s->memory = fmax(s->memory, carry_resident_bytes());
}

static carry_status stream_rank(void *user, carry_comm *comm) {
    session *s = user;
    if (carry_comm_rank(comm) > 0) {
        return carry_pipeline_run(comm, &s->options, &(carry_pipeline_hooks){0}, NULL);
    }
    const carry_pipeline_hooks hooks = {.controls = s->controls,
                                        .stop = cli_interrupted,
                                        .frames = s->kept != NULL || s->expected != NULL ? hear_frames : NULL,
                                        .figures = hear_figures,
                                        .user = s};
    s->ctx = carry_comm_ctx(comm);
    return carry_pipeline_run(comm, &s->options, &hooks, &s->figures);
}

/* Runs a stream in the chosen topology. s->options already has the delays of the stages. */
static carry_status stream(session *s, int64_t chunks) {
    const instance *it = s->it;
    const bool with_stage = it->topology == PIPELINE;
    s->options.chunks = chunks;
    s->options.with_stage = with_stage;
    if (!with_stage) { /* the rank that decodes generates too: nothing to divide */
        s->options.multiprocessors = 0;
    }
    CARRY_TRY(carry_controls_new(it->ctx, &s->controls, &it->start));
    carry_status status = carry_collective_run(it->ctx, NULL, it->mesh + (with_stage ? 1 : 0), stream_rank, s);
    carry_controls_free(s->controls);
    if (status == CARRY_OK && s->figures.chunks < (uint64_t)chunks) {
        status = carry_fail(it->ctx, CARRY_EINTERRUPTED, "the stream ended after %llu of %lld chunks",
                            (unsigned long long)s->figures.chunks, (long long)chunks);
    }
    return status;
}

/* The warm-up, which is not timed. With slow0=match it runs without a delay and measures the delay for stage 0. */
static carry_status run(void *given) {
    instance *it = given;
    session s = {.it = it, .options = it->options};
    s.options.slow_stage0 = it->matches ? 0.0 : it->options.slow_stage0;
    CARRY_TRY(stream(&s, WARM_UP));
    it->matched = fmax(0.0, s.figures.overlap.stage1 - s.figures.overlap.stage0);
    return CARRY_OK;
}

static carry_status time_run(void *given, double *seconds) {
    instance *it = given;
    record *to = &it->of[it->topology];
    session s = {.it = it, .options = it->options};
    s.options.slow_stage0 = it->matches ? it->matched : it->options.slow_stage0;
    CARRY_TRY(stream(&s, it->options.chunks));
    const carry_overlap_summary *o = &s.figures.overlap;
    to->score[to->streams % KEPT] = o->score;
    to->slower[to->streams % KEPT] = fmax(o->stage0, o->stage1);
    to->denoise[to->streams % KEPT] = o->denoise;
    to->recompute[to->streams % KEPT] = o->recompute;
    to->clean[to->streams % KEPT] = o->clean;
    to->decode[to->streams % KEPT] = o->decode;
    to->memory = fmax(to->memory, s.memory);
    to->streams++;
    *seconds = o->period;
    return CARRY_OK;
}

/* The median, or NaN if any value is NaN. */
static double median_of(const double *values, int count) {
    double sorted[KEPT];
    for (int i = 0; i < count; i++) {
        if (isnan(values[i])) {
            return NAN;
        }
        sorted[i] = values[i];
    }
    return count > 0 ? carry_summarise(sorted, count).median : NAN;
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    const carry_pipeline_options *o = &it->options;
    const int64_t *patch = it->model.config.patch;
    const record *of = &it->of[it->topology];
    const int count = of->streams < KEPT ? of->streams : KEPT;
    /* A period includes waits, messages and a codec, not only arithmetic, so it has no ceiling. */
    return (carry_counts){
        .flops = NAN,
        .bytes = NAN,
        .tokens =
            (double)(o->chunk / patch[0]) * (double)(o->height / 8 / patch[1]) * (double)(o->width / 8 / patch[2]),
        .workspace = of->memory,
        .overlap = median_of(of->score, count),
        .slower_stage = median_of(of->slower, count),
        .denoise = median_of(of->denoise, count),
        .recompute = median_of(of->recompute, count),
        .clean = median_of(of->clean, count),
        .decode = median_of(of->decode, count),
    };
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    const int own = it->topology;
    pictures kept = {0};
    session one = {.it = it, .options = it->options, .kept = &kept};
    session two = {.it = it, .options = it->options, .expected = &kept};
    one.options.slow_stage0 = one.options.slow_stage1 = two.options.slow_stage0 = two.options.slow_stage1 = 0.0;
    it->topology = own == PIPELINE ? MESH : PIPELINE;
    carry_status status = stream(&one, COMPARED);
    it->topology = own;
    status = status == CARRY_OK ? stream(&two, COMPARED) : status;
    free(kept.pixel);
    CARRY_TRY(status);
    const double apart = kept.count > 0 && two.seen == kept.count ? two.apart : NAN;
    deviations[0] = (carry_deviation){
        .tensor = "frames", .absolute = apart, .error = apart > 0.0 ? apart / two.largest : apart, .bound = 0.0};
    *count = 1;
    return CARRY_OK;
}

static int device_of(const void *given) {
    return ((const instance *)given)->options.device;
}

const carry_family carry_family_stream = {
    .name = "stream",
    .about = "streaming from a causal video transformer, with a separate stage for encoding and decoding or without; "
             "a sample is the median period of a stream",
    .takes = takes,
    .example = "stream:chunks30:depth2:slow0=match",
    .support = {.cpu = "f32", .ranks = "cpu"},
    .open = open_instance,
    .plan = plan_instance,
    .close = close_instance,
    .bytes = bytes,
    .method = method,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = only,
    .run = run,
    .time = time_run,
    .counts = counts,
    .compare = compare,
    .device = device_of,
};
