/* carry/engine.h: a model, its runner and a scheduler. */
#include "carry/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/sized.h"
#include "engine/engine_inside.h"
#include "engine/llm.h"
#include "engine/model_runner.h"
#include "model/lm/lm_heads.h"

#define SEQUENCES 16
#define CONTEXT 8192
#define STEP_CPU 512
#define STEP_GPU 4096
#define QUEUE 1024
#define CUT_FROM_GPU 2048          /* tokens: below it a second piece takes as long as the first, at 345,000 tokens/s */
#define SNAPSHOTS 1024             /* maximum number of slots for snapshots */
#define LARGEST ((int64_t)1 << 30) /* of a number of sequences or tokens in the options: products with it fit */
#define MEMORY_CPU ((size_t)4 << 30)
#define CACHE_DIR_BYTES ((size_t)16 << 30)

static carry_status choose_memory(carry_ctx *ctx, int device, size_t *memory) {
    size_t available;
    size_t total;
    if (*memory > 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_device_memory(ctx, &available, &total, device));
    *memory = available / 4;
    *memory = device == 0 && *memory > MEMORY_CPU ? MEMORY_CPU : *memory;
    return CARRY_OK;
}

/* Sets e->texts to the number of texts at once; the other runs of a step are for guesses. */
static carry_status choose_sizes(carry_engine *e, const carry_engine_options *o, carry_dtype dtype,
                                 const carry_state_types *types, carry_runner_sizes *sizes, carry_draft_plan *draft) {
    const carry_lm *lm = e->model.lm;
    const int64_t longest = lm->config.max_position_embeddings;
    size_t memory = o->memory;
    if (o->sequences < 0 || o->context < 0 || o->step_tokens < 0 || o->queue < 0 || o->sequences > LARGEST ||
        o->context > LARGEST || o->step_tokens > LARGEST) {
        return carry_fail(e->ctx, CARRY_EARGUMENT,
                          "sequences %" PRId64 ", context %" PRId64 ", step_tokens %" PRId64 ", queue %" PRId64
                          ": expected 0 (the default) or more, and at most %" PRId64,
                          o->sequences, o->context, o->step_tokens, o->queue, LARGEST);
    }
    *sizes = (carry_runner_sizes){.sequences = o->sequences > 0 ? o->sequences : SEQUENCES};
    sizes->context = o->context > 0 ? o->context : longest > 0 && longest < CONTEXT ? longest : CONTEXT;
    sizes->tokens = o->step_tokens > 0 ? o->step_tokens : lm->own.device == 0 ? STEP_CPU : STEP_GPU;
    CARRY_TRY(carry_draft_choose(e->ctx, draft, o, sizes->sequences));
    if (sizes->tokens < sizes->sequences + draft->runs + CARRY_PAGE_TOKENS) {
        sizes->tokens = sizes->sequences + draft->runs + CARRY_PAGE_TOKENS;
    }
    CARRY_TRY(draft->by_heads ? carry_lm_heads_open(e->model.lm, &e->heads) : CARRY_OK);
    const carry_model_runner_options runner = {.same_bits = o->same_bits, .heads = e->heads, .types = types};
    carry_pool_demand demand = {.sequences = sizes->sequences, .context = sizes->context};
    carry_model_runner_measure(lm, e->heads, dtype, types, &demand.slot_bytes, &demand.page_bytes);
    demand.slot_bytes += carry_model_runner_ring_bytes(lm, &runner, sizes->sequences + draft->runs);
    demand.most_slots = sizes->sequences + draft->runs + (o->no_cache ? 0 : SNAPSHOTS);
    demand.spare = o->no_cache ? 0 : 3 * sizes->sequences;
    CARRY_TRY(choose_memory(e->ctx, lm->own.device, &memory));
    CARRY_TRY(carry_state_pool_fit(e->ctx, &sizes->slots, &sizes->pages, memory, &demand));
    e->texts = sizes->slots < sizes->sequences ? sizes->slots : sizes->sequences;
    sizes->sequences = e->texts + draft->runs < sizes->slots ? e->texts + draft->runs : sizes->slots;
    return CARRY_OK;
}

static carry_status find_tokens(carry_engine *e) {
    const carry_model *m = &e->model;
    const int64_t vocabulary = m->lm->config.vocab_size;
    const int64_t tokens = m->tokenizer != NULL ? carry_tokenizer_size(m->tokenizer) : vocabulary;
    for (int64_t i = 0; i < vocabulary && e->end_count < CARRY_MODEL_ENDS + 2; i++) {
        if (carry_model_ends_with(m, i)) {
            e->ends[e->end_count++] = (int32_t)i;
        }
    }
    if (tokens == vocabulary) {
        return CARRY_OK;
    }
    e->allowed = calloc((size_t)vocabulary / 32 + 1, sizeof *e->allowed);
    if (e->allowed == NULL) {
        return carry_fail(e->ctx, CARRY_EMEMORY, "out of memory: a vocabulary of %" PRId64, vocabulary);
    }
    for (int64_t i = 0; i < tokens; i++) {
        e->allowed[i / 32] |= 1u << i % 32;
    }
    return CARRY_OK;
}

static carry_status open_engine(carry_engine *e, const carry_engine_options *o, carry_dtype dtype) {
    carry_runner_sizes sizes;
    carry_draft_plan draft;
    carry_state_types types;
    CARRY_TRY(carry_state_types_parse(&types, e->model.lm, dtype, o->kv_type, o->state_type));
    CARRY_TRY(choose_sizes(e, o, dtype, &types, &sizes, &draft));
    CARRY_TRY(find_tokens(e));
    CARRY_TRY(carry_model_runner_new_with(
        e->model.lm, &e->runner, &sizes, dtype,
        &(carry_model_runner_options){.same_bits = o->same_bits, .heads = e->heads, .types = &types}));
    const carry_scheduler_options options = {
        .cache = {.device_bytes = o->no_cache           ? 0
                                  : o->cache_device > 0 ? o->cache_device
                                                        : SIZE_MAX,
                  .host_bytes = o->cache_host,
                  .folder = o->cache_dir,
                  .folder_bytes = o->cache_dir_bytes > 0 ? o->cache_dir_bytes : CACHE_DIR_BYTES},
        .queue = INT64_MAX, /* the engine counts requests itself */
        /* with a folder, states must be cached at whole blocks: files have differences to states at whole blocks */
        .cut_from = e->model.lm->own.device != 0 && o->cache_dir == NULL ? CUT_FROM_GPU : 0,
        .same_bits = o->same_bits,
        .texts = e->texts,
        .draft = draft.function,
        .heads_draft = draft.by_heads,
        .draft_tokens = draft.tokens,
        .on_event = carry_engine_on_event,
        .user = e};
    CARRY_TRY(carry_scheduler_new(e->ctx, &e->scheduler, e->runner, &options));
    e->queue = o->queue > 0 ? o->queue : QUEUE;
    return CARRY_OK;
}

static carry_status make_engine(carry_ctx *ctx, carry_engine **made) {
    *made = calloc(1, sizeof **made);
    if (*made == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: an engine");
    }
    (*made)->ctx = ctx;
    (*made)->model = (carry_model){.start = -1, .end = -1, .other_end = -1};
    /* Waits are bounded also if the system's clock is set back. */
    pthread_condattr_t monotonic;
    (*made)->has_lock =
        pthread_condattr_init(&monotonic) == 0 && pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0 &&
        pthread_mutex_init(&(*made)->lock, NULL) == 0 && pthread_cond_init(&(*made)->changed, &monotonic) == 0;
    (void)pthread_condattr_destroy(&monotonic);
    return (*made)->has_lock ? CARRY_OK : carry_fail(ctx, CARRY_EMEMORY, "out of memory: a lock");
}

static carry_status close_on_failure(carry_engine **engine, carry_status status) {
    if (status != CARRY_OK) {
        carry_engine_close(*engine);
        *engine = NULL;
    }
    return status;
}

static carry_status open_folder(carry_engine *e, const char *folder, const carry_engine_options *o) {
    CARRY_TRY(carry_model_open_with_text(e->ctx, &e->model, folder, o->device));
    return open_engine(e, o, o->dtype);
}

carry_status carry_engine_open(carry_ctx *ctx, carry_engine **engine, const char *folder,
                               const carry_engine_options *options) {
    carry_engine_options o;
    *engine = NULL;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_engine_options, &o, options));
    carry_status status = make_engine(ctx, engine);
    status = status == CARRY_OK ? open_folder(*engine, folder, &o) : status;
    return close_on_failure(engine, status);
}

carry_status carry_engine_adopt(carry_ctx *ctx, carry_engine **engine, carry_model *model, carry_dtype dtype,
                                const carry_engine_options *options) {
    carry_engine_options o;
    *engine = NULL;
    CARRY_TRY(CARRY_SIZED_READ(ctx, carry_engine_options, &o, options));
    carry_status status = make_engine(ctx, engine);
    if (status == CARRY_OK) {
        (*engine)->model = *model;
        *model = (carry_model){.start = -1, .end = -1, .other_end = -1};
        status = open_engine(*engine, &o, dtype);
    }
    return close_on_failure(engine, status);
}

static carry_status open_model(carry_engine *e, carry_llm *llm, const carry_engine_options *o) {
    e->is_borrowed = true;
    carry_model_borrow(e->ctx, &e->model, llm->lm);
    return open_engine(e, o, llm->dtype);
}

carry_status carry_engine_new(carry_llm *model, carry_engine **engine, const carry_engine_options *options) {
    carry_engine_options o;
    *engine = NULL;
    CARRY_TRY(CARRY_SIZED_READ(model->ctx, carry_engine_options, &o, options));
    carry_status status = make_engine(model->ctx, engine);
    status = status == CARRY_OK ? open_model(*engine, model, &o) : status;
    return close_on_failure(engine, status);
}

static void free_inbox(carry_engine *e) {
    for (carry_engine_job *job = e->inbox, *next; job != NULL; job = next) {
        next = job->next;
        carry_sequence_free(job->sequence);
        carry_engine_job_free(job);
    }
}

/* Begins a call that may call callbacks; refuses one from such a callback. */
static carry_status begin_driving(carry_engine *e, const char *function) {
    return !atomic_exchange(&e->is_driven, true)
               ? CARRY_OK
               : carry_fail(e->ctx, CARRY_EARGUMENT,
                            "%s was called while a step of the same engine runs, as by its callbacks on_event and "
                            "constrain: call it after the step has returned",
                            function);
}

static carry_status end_driving(carry_engine *e, carry_status status) {
    atomic_store(&e->is_driven, false);
    return status;
}

void carry_engine_close(carry_engine *e) {
    if (e == NULL) {
        return;
    }
    if (begin_driving(e, "carry_engine_close") != CARRY_OK) {
        carry_log(e->ctx, CARRY_LOG_ERROR, "%s", carry_ctx_error(e->ctx));
        return;
    }
    e->is_closing = true;
    if (e->scheduler != NULL) {
        bool is_busy = true;
        carry_scheduler_cancel_all(e->scheduler);
        while (is_busy && carry_scheduler_step(e->scheduler, &is_busy) == CARRY_OK) {
        }
        carry_scheduler_free(e->scheduler);
    }
    free_inbox(e);
    carry_engine_free_events(e);
    if (e->runner != NULL) {
        e->runner->ops->close(e->runner);
    }
    carry_lm_free(e->heads);
    e->model.lm = e->is_borrowed ? NULL : e->model.lm;
    carry_model_close(&e->model);
    if (e->has_lock) {
        (void)pthread_cond_destroy(&e->changed);
        (void)pthread_mutex_destroy(&e->lock);
    }
    free(e->cancelled);
    free(e->allowed);
    free(e);
}

/* If the scheduler refuses a request, it ends at once. */
static void add_job(carry_engine *e, carry_engine_job *job) {
    carry_sequence *q = job->sequence;
    job->sequence = NULL;
    if (carry_scheduler_add(e->scheduler, q, job->id) != CARRY_OK) {
        q->outcome = CARRY_OUTCOME_FAILED;
        q->status = CARRY_ESIZE;
        (void)snprintf(q->message, sizeof q->message, "%s", carry_ctx_error(e->ctx));
        carry_engine_on_event(e, &(carry_sequence_event){.sequence = q});
        carry_sequence_free(q);
    }
}

/* Takes requests and cancellations from other threads; the lock is held only while they are taken. */
static void take_inbox(carry_engine *e) {
    (void)pthread_mutex_lock(&e->lock);
    carry_engine_job *job = e->inbox;
    uint64_t *cancelled = e->cancelled;
    const size_t count = e->cancelled_count;
    e->inbox = e->inbox_last = NULL;
    if (count > 0) {
        e->cancelled = NULL;
        e->cancelled_count = e->cancelled_room = 0;
    }
    (void)pthread_mutex_unlock(&e->lock);
    for (carry_engine_job *next; job != NULL; job = next) {
        next = job->next;
        add_job(e, job);
    }
    for (size_t i = 0; i < count; i++) {
        (void)carry_scheduler_cancel(e->scheduler, cancelled[i]);
    }
    if (count > 0) {
        free(cancelled);
    }
}

carry_status carry_engine_step(carry_engine *e, bool *is_busy) {
    CARRY_TRY(begin_driving(e, "carry_engine_step"));
    take_inbox(e);
    CARRY_TRY(end_driving(e, carry_scheduler_step(e->scheduler, is_busy)));
    (void)pthread_mutex_lock(&e->lock);
    *is_busy = *is_busy || e->inbox != NULL;
    (void)pthread_mutex_unlock(&e->lock);
    return CARRY_OK;
}

carry_status carry_engine_run(carry_engine *e) {
    for (bool is_busy = true; is_busy;) {
        CARRY_TRY(carry_engine_step(e, &is_busy));
    }
    return CARRY_OK;
}

bool carry_engine_wait(carry_engine *e, double seconds) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    const double bounded = seconds > 0.0 ? fmin(seconds, 1e6) : 0.0;
    const double whole = floor(bounded);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)((bounded - whole) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&e->lock);
    int error = 0;
    while (e->inbox == NULL && e->cancelled_count == 0 && error == 0) { /* ETIMEDOUT */
        error = pthread_cond_timedwait(&e->changed, &e->lock, &until);
    }
    const bool has_work = e->inbox != NULL || e->cancelled_count > 0;
    (void)pthread_mutex_unlock(&e->lock);
    return has_work;
}

carry_status carry_engine_state_length(carry_engine *e, uint64_t state, int64_t *tokens) {
    return carry_scheduler_state_length(e->scheduler, state, tokens);
}

carry_status carry_engine_state_fork(carry_engine *e, uint64_t state, uint64_t *made) {
    return carry_scheduler_state_fork(e->scheduler, state, made);
}

carry_status carry_engine_state_roll_back(carry_engine *e, uint64_t state, int64_t tokens) {
    CARRY_TRY(begin_driving(e, "carry_engine_state_roll_back")); /* it reads outstanding results */
    return end_driving(e, carry_scheduler_state_roll_back(e->scheduler, state, tokens));
}

carry_status carry_engine_state_save(carry_engine *e, uint64_t state, const char *path) {
    return carry_scheduler_state_save(e->scheduler, state, path);
}

carry_status carry_engine_state_load(carry_engine *e, uint64_t *made, const char *path) {
    return carry_scheduler_state_load(e->scheduler, made, path);
}

carry_status carry_engine_state_to_host(carry_engine *e, uint64_t state) {
    return carry_scheduler_state_to_host(e->scheduler, state);
}

carry_status carry_engine_state_move(carry_engine *e, uint64_t state, carry_engine *to, uint64_t *made) {
    *made = 0;
    if (to == e) {
        return carry_fail(e->ctx, CARRY_EARGUMENT, "state %" PRIu64 " is in this engine: expected another one", state);
    }
    return carry_scheduler_state_move(e->scheduler, state, to->scheduler, made);
}

carry_status carry_engine_state_drop(carry_engine *e, uint64_t state) {
    return carry_scheduler_state_drop(e->scheduler, state);
}

carry_status carry_engine_state_cache(carry_engine *e, uint64_t state) {
    return carry_scheduler_state_cache(e->scheduler, state);
}

void carry_engine_statistics(carry_engine *e, carry_engine_stats *stats) {
    const carry_scheduler_stats s = carry_scheduler_statistics(e->scheduler);
    const carry_engine_stats own = {.waiting = s.waiting,
                                    .active = s.active,
                                    .states = s.states,
                                    .slots = s.slots,
                                    .free_slots = s.free_slots,
                                    .pages = s.pages,
                                    .free_pages = s.free_pages,
                                    .steps = s.steps,
                                    .requests = s.requests,
                                    .finished = s.finished,
                                    .cancelled = s.cancelled,
                                    .failed = s.failed,
                                    .prompt_tokens = s.prompt_tokens,
                                    .cached_tokens = s.cached_tokens,
                                    .tokens = s.written_tokens,
                                    .snapshots = s.cache.snapshots,
                                    .host_snapshots = s.cache.host_snapshots,
                                    .file_snapshots = s.cache.file_snapshots,
                                    .cache_device = s.cache.device_bytes,
                                    .cache_host = s.cache.host_bytes,
                                    .cache_dir = s.cache.file_bytes,
                                    .drafted_tokens = s.drafted_tokens,
                                    .accepted_tokens = s.accepted_tokens};
    (void)CARRY_SIZED_WRITE(e->ctx, carry_engine_stats, stats, &own);
}

int64_t carry_engine_context(const carry_engine *e) {
    return e->runner->sizes.context;
}

int64_t carry_engine_vocabulary(const carry_engine *e) {
    return e->runner->sizes.vocabulary;
}
