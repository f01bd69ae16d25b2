/* Checks of problems and arguments, and the comparison between ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "scan/all_scan/all_scan.h"
#include "scan/check.h"

#define MAX_SIZE ((int64_t)1 << 40) /* far beyond any size in use */
#define WORD 192
#define DIFFERENCES 400

static carry_status check_sizes(carry_ctx *ctx, const carry_all_scan_problem *problem) {
    const bool has_rows = problem->kind == CARRY_ALL_SCAN_FACTORS;
    const int64_t sizes[] = {problem->heads, problem->key, problem->value, has_rows ? problem->rows : 1};
    const char *const names[] = {"heads", "key", "value", "rows"};
    for (int i = 0; i < 4; i++) {
        if (sizes[i] < 1 || sizes[i] > MAX_SIZE) {
            return carry_fail(ctx, CARRY_ESIZE, "%s is %" PRId64 " and must be 1 to %" PRId64, names[i], sizes[i],
                              MAX_SIZE);
        }
    }
    if (!has_rows && problem->rows != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "rows is %" PRId64 ": only factors have rows", problem->rows);
    }
    const int64_t state[] = {problem->heads, problem->key, problem->value};
    const int64_t map[] = {problem->heads, problem->key, problem->key};
    const int64_t factors[] = {problem->heads, sizes[3], problem->key};
    const int64_t scratch[] = {sizes[3], problem->value, 1024}; /* 1024: most threads */
    size_t bytes;
    if (!carry_size_product(&bytes, state, 3, 64) || !carry_size_product(&bytes, map, 3, 64) ||
        !carry_size_product(&bytes, factors, 3, 64) || !carry_size_product(&bytes, scratch, 3, 64)) {
        return carry_fail(ctx, CARRY_ESIZE,
                          "heads %" PRId64 ", key %" PRId64 ", value %" PRId64 ", rows %" PRId64
                          " multiply to more than memory can be: reduce one",
                          problem->heads, problem->key, problem->value, problem->rows);
    }
    return CARRY_OK;
}

carry_status carry_all_scan_check_problem(carry_ctx *ctx, const carry_all_scan_problem *problem,
                                          const carry_all_scan_options *options) {
    if ((unsigned)problem->kind > CARRY_ALL_SCAN_FACTORS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "there is no kind %d of All-Scan", (int)problem->kind);
    }
    CARRY_TRY(check_sizes(ctx, problem));
    if (problem->wire != CARRY_F32 && problem->wire != CARRY_BF16) {
        return carry_fail(ctx, CARRY_EDTYPE, "states travel as f32 or bf16, not as %s",
                          carry_dtype_name(problem->wire));
    }
    if (options->algorithm != NULL && carry_all_scan_find(options->algorithm) == NULL) {
        return carry_fail(
            ctx, CARRY_ENOTFOUND,
            "there is no algorithm \"%.40s\": there are chain, doubling, gather (lasp2), heads, serial (lasp1)",
            options->algorithm);
    }
    if (options->blocks < 0 || options->blocks > problem->heads * problem->value) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "%" PRId64 " blocks: there are %" PRId64 " columns in %" PRId64 " heads; 0 lets Carry choose",
                          options->blocks, problem->heads * problem->value, problem->heads);
    }
    if (options->tag < 0 || options->tag >= CARRY_MAX_COMM_TAGS) {
        return carry_fail(ctx, CARRY_EARGUMENT, "tag %d: expected 0 to %d", options->tag, CARRY_MAX_COMM_TAGS - 1);
    }
    return CARRY_OK;
}

static void write_word(char word[WORD], const carry_all_scan_problem *p, const carry_all_scan_options *o) {
    static const char *const kinds[] = {"dense", "diagonal", "factors"};
    memset(word, 0, WORD); /* all bytes of it are sent */
    (void)snprintf(word, WORD,
                   "%s h%" PRId64 " k%" PRId64 " v%" PRId64 " rows %" PRId64 " %s%s%s, %.24s in %" PRId64
                   " blocks, tag %d",
                   (unsigned)p->kind <= CARRY_ALL_SCAN_FACTORS ? kinds[p->kind] : "?", p->heads, p->key, p->value,
                   p->rows, carry_dtype_name(p->wire), p->reversed ? " reversed" : "",
                   p->transposed ? " transposed" : "", o->algorithm != NULL ? o->algorithm : "any", o->blocks, o->tag);
}

/* Every rank reads the same words, so all ranks return the same result. */
static carry_status compare(carry_comm *comm, const char *words) {
    char text[DIFFERENCES];
    int used = 0, differing = 0;
    for (int rank = 1; rank < carry_comm_size(comm); rank++) {
        const char *word = words + (size_t)rank * WORD;
        if (strncmp(word, words, WORD - 1) == 0) {
            continue;
        }
        differing++;
        if (used < (int)sizeof text / 2) { /* only the first differences are listed */
            used += snprintf(text + used, sizeof text - (size_t)used, ", rank %d '%.*s'", rank, WORD - 1, word);
            used = used < (int)sizeof text ? used : (int)sizeof text - 1;
        }
    }
    if (differing == 0) {
        return CARRY_OK;
    }
    return carry_fail(carry_comm_ctx(comm), CARRY_EARGUMENT, "the ranks differ (%d of %d): rank 0 has '%.*s'%s",
                      differing, carry_comm_size(comm), WORD - 1, words, text);
}

carry_status carry_all_scan_agree(carry_comm *comm, const carry_all_scan_problem *problem,
                                  const carry_all_scan_options *options) {
    char word[WORD];
    char *words = calloc((size_t)carry_comm_size(comm), WORD);
    if (words == NULL) {
        const carry_status status =
            carry_fail(carry_comm_ctx(comm), CARRY_EMEMORY, "out of memory: comparing %d ranks", carry_comm_size(comm));
        carry_comm_abort(comm, carry_ctx_error(carry_comm_ctx(comm)));
        return status;
    }
    write_word(word, problem, options);
    carry_status status = carry_all_gather(comm, words, word, WORD);
    if (status == CARRY_OK) {
        status = compare(comm, words);
    }
    free(words);
    return status;
}

static carry_status check_tensor(const carry_all_scan_plan *plan, const char *name, const carry_tensor *tensor,
                                 int rank, const int64_t *shape) {
    carry_ctx *ctx = plan->ctx;
    CARRY_TRY(carry_tensor_expect(ctx, name, tensor, rank, shape));
    if (tensor->dtype != CARRY_F32) {
        return carry_fail(ctx, CARRY_EDTYPE, "%s is %s, and f32 is needed", name, carry_dtype_name(tensor->dtype));
    }
    if (tensor->device != plan->device) {
        return carry_fail(ctx, CARRY_EDEVICE,
                          "%s is on device %d, and this communicator moves memory of device %d (%s)", name,
                          tensor->device, plan->device, carry_comm_name(plan->comm));
    }
    if (!carry_tensor_is_packed(tensor, 0)) {
        return carry_fail(ctx, CARRY_ESTRIDE, "%s is not packed: its elements must follow each other", name);
    }
    return CARRY_OK;
}

/* Checks an input: it must not overlap state, and may overlap leaving only if `same` allows equal views. */
static carry_status check_input(const carry_all_scan_plan *plan, const carry_all_scan_args *args, const char *name,
                                const carry_tensor *tensor, int rank, const int64_t *shape, bool same) {
    CARRY_TRY(check_tensor(plan, name, tensor, rank, shape));
    CARRY_TRY(carry_scan_check_apart(plan->ctx, "state", &args->state, name, tensor, false));
    return args->leaving.data != NULL ? carry_scan_check_apart(plan->ctx, "leaving", &args->leaving, name, tensor, same)
                                      : CARRY_OK;
}

static carry_status check_map(const carry_all_scan_plan *plan, const carry_all_scan_args *args) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t map[] = {p->heads, p->key, p->key}, factor[] = {p->heads, p->rows, p->key};
    if (p->kind != CARRY_ALL_SCAN_FACTORS) {
        return check_input(plan, args, "M", &args->M, p->kind == CARRY_ALL_SCAN_DENSE ? 3 : 2, map, false);
    }
    CARRY_TRY(check_input(plan, args, "W", &args->W, 3, factor, false));
    CARRY_TRY(check_input(plan, args, "Y", &args->Y, 3, factor, false));
    return check_input(plan, args, "gamma", &args->gamma, 1, map, false);
}

carry_status carry_all_scan_check_args(const carry_all_scan_plan *plan, const carry_all_scan_args *args) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t state[] = {p->heads, p->key, p->value};
    if ((unsigned)args->role > CARRY_ALL_SCAN_PASS) {
        return carry_fail(plan->ctx, CARRY_EARGUMENT, "there is no role %d of a rank in All-Scan", (int)args->role);
    }
    CARRY_TRY(check_tensor(plan, "state", &args->state, 3, state));
    if (args->leaving.data != NULL) {
        CARRY_TRY(check_tensor(plan, "leaving", &args->leaving, 3, state));
        CARRY_TRY(carry_scan_check_apart(plan->ctx, "state", &args->state, "leaving", &args->leaving, false));
    }
    if (args->role == CARRY_ALL_SCAN_MAP) {
        CARRY_TRY(check_map(plan, args));
    }
    if (args->role != CARRY_ALL_SCAN_PASS) {
        CARRY_TRY(check_input(plan, args, "L", &args->L, 3, state, true));
    }
    if (plan->position == 0 && args->initial.data != NULL) {
        CARRY_TRY(check_input(plan, args, "initial", &args->initial, 3, state, true));
    }
    return CARRY_OK;
}
