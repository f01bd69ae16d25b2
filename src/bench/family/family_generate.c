/* Generation with a language model of random weights as problems: generate:bf16:config=qwen3.5-0.8b:b16:prompt512:
   tokens64:device=cuda reads 16 prompts of 512 tokens and generates 64 tokens for each, through the engine.

   Prompts are random and differ from the first token on, so that none comes from the cache. The log probability of
   the first text's first token is compared with that of one pass of the model over the whole prompt, in the same type
   on the same device.

   With draft=4:accept=0.75 a step reads four draft tokens after the last token of each text, and the first three are
   accepted regardless of what was sampled. This measures the speed of speculative decoding at that acceptance rate. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/deviation.h"
#include "bench/family/family.h"
#include "carry/device.h"
#include "carry/ops.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "engine/model_random.h"
#include "engine/model_runner.h"
#include "engine/scheduler.h"
#include "model/host.h"

#define STEP_CPU 512
#define STEP_GPU 4096

typedef struct instance {
    carry_instance base;
    carry_dtype dtype;
    int64_t batch, prompt, tokens;
    int64_t draft, forced; /* guesses per step; how many of them count as right */
    char config[CARRY_PROBLEM_WORD];
    carry_lm *lm;
    carry_runner *runner;
    carry_scheduler *scheduler;
    int32_t *ids; /* [batch, prompt] */
    /* Of the last run: */
    double begun, all_begun, ended; /* times in seconds: start, every text has a token, end */
    int64_t begun_texts, after;     /* number of texts with a token; number of tokens after all_begun */
    int32_t first;                  /* the first token of the first text */
    double logprob;                 /* of it, if it is compared */
    bool compares;
    carry_status failure;
    char about[160];
} instance;

static const char takes[] =
    "f32, bf16 or f16; b (texts at once), prompt, tokens; config=NAME or FILE (tiny, qwen3.5-0.8b, "
    "qwen3.5-4b, qwen3.5-35b-a3b), draft=N, accept=SHARE (guesses of a step, forced to be right), device=cpu or cuda";

static const char *method(int index) {
    return index == 0 ? "engine" : NULL;
}

/* draft=4:accept=0.75. */
static carry_status parse_draft(instance *it, carry_problem *problem) {
    const char *draft = carry_problem_setting(problem, "draft");
    const char *accept = carry_problem_setting(problem, "accept");
    char *end = NULL;
    char *rest = NULL;
    const long count = draft != NULL ? strtol(draft, &end, 10) : 0;
    const double share = accept != NULL ? strtod(accept, &rest) : 1.0;
    if ((draft != NULL && (end == draft || *end != '\0')) || (accept != NULL && (rest == accept || *rest != '\0')) ||
        count < 0 || count > CARRY_DRAFT_MOST || !(share >= 0.0 && share <= 1.0) || (accept != NULL && count == 0)) {
        return carry_fail(it->base.ctx, CARRY_EARGUMENT,
                          "'%s': expected draft=N with N from 1 to %d, and accept from 0 to 1", problem->text,
                          CARRY_DRAFT_MOST);
    }
    it->draft = count;
    it->forced = (int64_t)(share * (double)count + 0.5);
    return CARRY_OK;
}

static carry_status parse(void *given, carry_problem *problem) {
    instance *it = given;
    const char *config = carry_problem_setting(problem, "config");
    (void)snprintf(it->config, sizeof it->config, "%s", config != NULL ? config : "tiny");
    CARRY_TRY(carry_problem_dtype(it->base.ctx, &it->dtype, problem, CARRY_F16));
    it->batch = carry_problem_size(problem, "b", 1);
    it->prompt = carry_problem_size(problem, "prompt", 128);
    it->tokens = carry_problem_size(problem, "tokens", 32);
    CARRY_TRY(parse_draft(it, problem));
    CARRY_TRY(carry_problem_device(it->base.ctx, &it->base.device, problem));
    CARRY_TRY(carry_problem_finish(it->base.ctx, problem, takes));
    int64_t sizes[] = {it->batch, 0};
    size_t bytes;
    if (it->batch < 1 || it->prompt < 1 || it->tokens < 1 || it->batch > 4096 ||
        __builtin_add_overflow(it->prompt, it->tokens, &sizes[1]) || !carry_size_product(&bytes, sizes, 2, 64)) {
        return carry_fail(it->base.ctx, CARRY_ESIZE, "'%s': expected b from 1 to 4096, prompt and tokens from 1 on",
                          problem->text);
    }
    int length = snprintf(it->about, sizeof it->about, "engine: steps of the model over pooled states, %s", it->config);
    if (it->draft > 0 && length > 0 && (size_t)length < sizeof it->about) {
        (void)snprintf(it->about + length, sizeof it->about - (size_t)length,
                       "; %" PRId64 " of %" PRId64 " guesses are forced to be right", it->forced, it->draft);
    }
    return CARRY_OK;
}

static void on_event(void *user, const carry_sequence_event *event) {
    instance *it = user;
    const carry_sequence *q = event->sequence;
    if (event->result == NULL) {
        it->failure =
            q->outcome == CARRY_OUTCOME_FAILED ? carry_fail(it->base.ctx, q->status, "%s", q->message) : it->failure;
        return;
    }
    it->after += it->begun_texts == it->batch;
    it->begun_texts += q->written == 1;
    if (q->written == 1 && it->begun_texts == it->batch) {
        it->all_begun = carry_seconds();
    }
    if (q->written == 1 && q->request == 1) {
        it->first = event->result->token;
        it->logprob = (double)event->result->logprob;
    }
}

/* Proposes arbitrary tokens. */
static int64_t guess(void *user, const int32_t *ids, int64_t count, int32_t *to, int64_t most) {
    (void)user;
    for (int64_t i = 0; i < most; i++) {
        to[i] = ids[(count - 1 + i) % count];
    }
    return most;
}

static carry_status open_engine(instance *it) {
    const int64_t runs = it->batch * (1 + it->draft);
    carry_runner_sizes sizes = {.sequences = runs, .slots = runs, .context = it->prompt + it->tokens};
    const int64_t step = it->base.device == 0 ? STEP_CPU : STEP_GPU;
    sizes.tokens = step > runs + CARRY_PAGE_TOKENS ? step : runs + CARRY_PAGE_TOKENS;
    sizes.pages = it->batch * ((sizes.context + CARRY_PAGE_TOKENS - 1) / CARRY_PAGE_TOKENS + 1);
    CARRY_TRY(carry_model_runner_new(it->lm, &it->runner, &sizes, it->dtype));
    return carry_scheduler_new(it->base.ctx, &it->scheduler, it->runner,
                               &(carry_scheduler_options){.queue = it->batch,
                                                          .texts = it->batch,
                                                          .draft = it->draft > 0 ? guess : NULL,
                                                          .draft_tokens = it->draft,
                                                          .draft_forced = it->forced,
                                                          .on_event = on_event,
                                                          .user = it});
}

/* Makes one set: the weights alone exceed the caches. */
static carry_status make_set(void *given, int index, uint64_t seed) {
    instance *it = given;
    if (index > 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_model_random(it->base.ctx, &it->lm, it->config, it->base.device, it->dtype, seed));
    it->ids = malloc((size_t)(it->batch * it->prompt) * sizeof *it->ids);
    if (it->ids == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: prompts");
    }
    for (int64_t i = 0; i < it->batch * it->prompt; i++) {
        it->ids[i] = (int32_t)(carry_philox(seed, 3, (uint64_t)i).word[0] % (uint32_t)it->lm->config.vocab_size);
    }
    return open_engine(it);
}

static void release(void *given) {
    instance *it = given;
    carry_scheduler_free(it->scheduler);
    if (it->runner != NULL) {
        it->runner->ops->close(it->runner);
    }
    carry_lm_free(it->lm);
    free(it->ids);
}

static double weight_bytes(const instance *it) {
    return (double)it->lm->own.trained * (double)carry_dtype_size(it->dtype);
}

/* The weights count once the set is made: a plan does not read the model's configuration. */
static double bytes(const void *given) {
    const instance *it = given;
    const double ids = (double)(it->batch * (it->prompt + it->tokens)) * (double)sizeof *it->ids;
    return it->lm != NULL ? ids + weight_bytes(it) : ids;
}

static carry_status choose(void *given, const char *wanted) {
    const instance *it = given;
    if (wanted != NULL && strcmp(wanted, method(0)) != 0) {
        return carry_fail(it->base.ctx, CARRY_ENOTFOUND, "there is no way '%s' to generate in this build", wanted);
    }
    return CARRY_OK;
}

static const char *chosen(const void *given) {
    (void)given;
    return method(0);
}

static const char *about_plan(const void *given) {
    return ((const instance *)given)->about;
}

static carry_status run(void *given) {
    instance *it = given;
    it->begun = carry_seconds();
    it->begun_texts = it->after = 0;
    it->failure = CARRY_OK;
    for (int64_t i = 0; i < it->batch; i++) {
        carry_sequence *q;
        const carry_sequence_options o = {.ids = it->ids + i * it->prompt,
                                          .count = it->prompt,
                                          .tokens = it->tokens,
                                          .sampling = {.top_p = 1.0},
                                          .logprobs = it->compares ? 0 : -1,
                                          .is_uncached = true};
        CARRY_TRY(carry_sequence_new(it->base.ctx, &q, &it->runner->sizes, &o));
        const carry_status status = carry_scheduler_add(it->scheduler, q, (uint64_t)i + 1);
        if (status != CARRY_OK) {
            carry_sequence_free(q);
            return status;
        }
    }
    for (bool is_busy = true; is_busy;) {
        CARRY_TRY(carry_scheduler_step(it->scheduler, &is_busy));
    }
    it->ended = carry_seconds();
    return it->failure;
}

static carry_counts counts(const void *given) {
    const instance *it = given;
    const double tokens = (double)(it->batch * (it->prompt + it->tokens - 1));
    const double reading = it->all_begun - it->begun;
    const double writing = it->ended - it->all_begun;
    return (carry_counts){.flops = 2.0 * (double)it->lm->own.trained * tokens,
                          /* Each step reads the weights at least once. */
                          .bytes = weight_bytes(it) * (double)it->tokens,
                          .tokens = (double)(it->batch * it->tokens),
                          .first = reading > 0.0 ? reading : 0.0,
                          .prompt_rate = reading > 0.0 ? (double)(it->batch * it->prompt) / reading : 0.0,
                          .text_rate = writing > 0.0 ? (double)it->after / writing : 0.0};
}

/* Computes the logits after the first prompt in one pass. */
static carry_status pass_logits(instance *it, carry_lm_pass *pass, void *memory, void *there, float *logits) {
    const int64_t shape[] = {1, it->lm->config.vocab_size};
    const carry_tensor low = carry_view_on(it->base.device, there, it->dtype, 2, shape);
    int64_t *ids = malloc((size_t)it->prompt * sizeof *ids);
    uint16_t *low_host = malloc((size_t)shape[1] * sizeof *low_host);
    carry_status status = CARRY_OK;
    if (ids == NULL || low_host == NULL) {
        free(ids);
        free(low_host);
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: a prompt");
    }
    for (int64_t i = 0; i < it->prompt; i++) {
        ids[i] = it->ids[i];
    }
    const carry_lm_args args = {
        .ids = carry_view_2d(ids, CARRY_I64, 1, it->prompt), .logits = low, .last_logits = true};
    status = carry_lm_run(pass, &args, memory, carry_lm_pass_memory(pass));
    void *host = it->dtype == CARRY_F32 ? (void *)logits : low_host;
    status = status == CARRY_OK ? carry_read(it->base.ctx, carry_view(host, it->dtype, 2, shape), low) : status;
    for (int64_t i = 0; status == CARRY_OK && i < shape[1] && it->dtype != CARRY_F32; i++) {
        logits[i] = it->dtype == CARRY_BF16 ? carry_f32_from_bf16(low_host[i]) : carry_f32_from_f16(low_host[i]);
    }
    free(ids);
    free(low_host);
    return status;
}

static double logprob_of(const float *logits, int64_t count, int64_t token) {
    float most = -INFINITY;
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) { /* fmax of doubles here crashes gcc 12 at -O3 on ARM with an internal error */
        most = logits[i] > most ? logits[i] : most;
    }
    for (int64_t i = 0; i < count; i++) {
        sum += exp((double)(logits[i] - most));
    }
    return (double)(logits[token] - most) - (sum > 0.0 ? log(sum) : 0.0); /* the largest term is 1 */
}

static carry_status compare(void *given, carry_deviation deviations[CARRY_DEVIATIONS], int *count) {
    instance *it = given;
    const int64_t vocabulary = it->lm->config.vocab_size;
    const carry_lm_pass_options options = {.batch = 1, .tokens = it->prompt, .dtype = it->dtype, .forward_only = true};
    carry_lm_pass *pass = NULL;
    void *memory = NULL;
    void *there = NULL;
    *count = 0;
    it->compares = true;
    const carry_status ran = run(it);
    it->compares = false;
    CARRY_TRY(ran);
    float *logits = calloc((size_t)vocabulary, sizeof *logits);
    if (logits == NULL) {
        return carry_fail(it->base.ctx, CARRY_EMEMORY, "out of memory: logits");
    }
    carry_status status = carry_lm_pass_new(it->lm, &pass, &options);
    status = status == CARRY_OK ? carry_lm_pass_take(pass, &memory) : status;
    status = status == CARRY_OK
                 ? carry_device_alloc(it->base.ctx, &there, it->base.device, (size_t)vocabulary * sizeof *logits)
                 : status;
    status = status == CARRY_OK ? pass_logits(it, pass, memory, there, logits) : status;
    if (status == CARRY_OK) {
        const double expected = logprob_of(logits, vocabulary, it->first);
        /* The bound for sums of the same numbers in another order, in every layer. */
        const double bound = (double)it->lm->config.num_hidden_layers * 16.0 * carry_unit_roundoff(it->dtype);
        const double apart = fabs(expected - it->logprob);
        deviations[0] = (carry_deviation){
            .tensor = "logprob", .error = apart / fabs(expected), .absolute = apart, .bound = fmax(bound, 1e-4)};
        *count = 1;
    }
    carry_device_free(it->base.ctx, it->base.device, there);
    if (pass != NULL) {
        carry_lm_pass_give(pass, memory);
        carry_lm_pass_free(pass);
    }
    free(logits);
    return status;
}

extern const carry_family carry_family_generate;

const carry_family carry_family_generate = {
    .name = "generate",
    .about = "prompts and texts of a language model with random weights, through the engine",
    .takes = takes,
    .example = "generate:bf16:config=tiny:b4:prompt128:tokens32",
    .support = {.cpu = "f32 bf16 f16", .cuda = "f32 bf16"},
    .type = CARRY_BF16,
    .instance_bytes = sizeof(instance),
    .parse = parse,
    .make_set = make_set,
    .unmeasured = "the engine has one way",
    .release = release,
    .bytes = bytes,
    .method = method,
    .choose = choose,
    .chosen = chosen,
    .about_plan = about_plan,
    .only = carry_instance_only,
    .run = run,
    .device = carry_instance_device,
    .counts = counts,
    .compare = compare,
};
