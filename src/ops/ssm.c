/* A state space layer on the CPU: a thread has one head of one row of the batch, chunk after chunk. */
#include "ops/ssm.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/context.h"
#include "core/tensor.h"
#include "core/threads.h"
#include "ops/convert.h"
#include "ops/cpu.h"
#include "ops/ssm_chunk.h"
#include "ops/ssm_device.h"

#define L CARRY_SSM_CHUNK

static carry_status expect_states(carry_ctx *ctx, const char *name, const carry_tensor *state,
                                  const carry_ssm_args *args, int64_t P) {
    const int64_t rows = args->slots != NULL && carry_is_here(state) ? state->shape[0] : args->xbc.shape[0];
    const int64_t shape[] = {rows, args->heads, P, args->state};
    return carry_is_here(state) ? carry_expect_f32(ctx, name, state, 4, shape, args->xbc.device) : CARRY_OK;
}

static carry_status check_sequences(carry_ctx *ctx, const carry_ssm_args *args) {
    const carry_tensor *cuts = &args->cu_seqlens;
    if (!carry_is_here(cuts)) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_expect_rank(ctx, "cu_seqlens", cuts, 1));
    CARRY_TRY(carry_expect_i64(ctx, "cu_seqlens", cuts, cuts->shape[0], args->xbc.device));
    const int64_t *at = cuts->data;
    const bool is_here = args->xbc.device == 0;
    bool fits = args->xbc.shape[0] == 1 && cuts->shape[0] > 1 && !carry_is_here(&args->initial) &&
                !carry_is_here(&args->final) &&
                (!is_here || (at[0] == 0 && at[cuts->shape[0] - 1] == args->xbc.shape[1]));
    for (int64_t i = 1; fits && is_here && i < cuts->shape[0]; i++) {
        fits = at[i] >= at[i - 1];
    }
    return fits ? CARRY_OK
                : carry_fail(ctx, CARRY_ERANGE,
                             "cu_seqlens must ascend from 0 to the number of tokens, for a batch of 1 without states");
}

carry_status carry_ssm_check(carry_ctx *ctx, const carry_ssm_args *args) {
    CARRY_TRY(carry_expect_rank(ctx, "xbc", &args->xbc, 3));
    CARRY_TRY(carry_expect_like(ctx, "xbc", &args->xbc, &args->xbc));
    const int64_t n = args->heads;
    const int64_t width = args->xbc.shape[2] - 2 * args->groups * args->state;
    if (n < 1 || args->groups < 1 || n % args->groups != 0 || args->state < 1 || args->state > CARRY_SSM_MAX_DIM ||
        width < n || width % n != 0 || width / n > CARRY_SSM_MAX_DIM || !(args->least <= args->most)) {
        return carry_fail(ctx, CARRY_ESHAPE,
                          "xbc has %" PRId64 " columns for %" PRId64 " heads, %" PRId64 " groups and states of %" PRId64
                          " (heads and states are at most %d wide)",
                          args->xbc.shape[2], n, args->groups, args->state, CARRY_SSM_MAX_DIM);
    }
    carry_tensor like = args->xbc;
    like.shape[2] = width;
    CARRY_TRY(carry_expect_like(ctx, "y", &args->y, &like));
    like.shape[2] = n;
    CARRY_TRY(carry_expect_like(ctx, "dt", &args->dt, &like));
    CARRY_TRY(carry_expect_f32(ctx, "A_log", &args->A_log, 1, &n, args->xbc.device));
    CARRY_TRY(carry_expect_f32(ctx, "dt_bias", &args->dt_bias, 1, &n, args->xbc.device));
    CARRY_TRY(carry_expect_f32(ctx, "D", &args->D, 1, &n, args->xbc.device));
    CARRY_TRY(expect_states(ctx, "initial", &args->initial, args, width / n));
    CARRY_TRY(expect_states(ctx, "final", &args->final, args, width / n));
    if (args->slots != NULL && (args->xbc.shape[1] != 1 || args->initial.data == NULL ||
                                args->initial.data != args->final.data || carry_is_here(&args->cu_seqlens))) {
        return carry_fail(ctx, CARRY_EARGUMENT,
                          "ssm: with slots there is one token, without cu_seqlens, and initial is final");
    }
    return check_sequences(ctx, args);
}

carry_status carry_ssm_open(carry_ctx *ctx, carry_ssm_job *j, const carry_ssm_args *args) {
    *j = (carry_ssm_job){.args = args,
                         .T = args->xbc.shape[1],
                         .n = args->heads,
                         .G = args->groups,
                         .N = args->state,
                         .channels = args->xbc.shape[2]};
    j->P = (j->channels - 2 * j->G * j->N) / j->n;
    return carry_kernels_of(ctx, &j->kernels);
}

bool carry_ssm_sequence(const carry_ssm_job *j, int64_t index, int64_t *first, int64_t *count) {
    const int64_t *at = j->args->cu_seqlens.data;
    const int64_t sequences = at != NULL ? j->args->cu_seqlens.shape[0] - 1 : 1;
    if (index >= sequences) {
        return false;
    }
    *first = at != NULL ? at[index] : 0;
    *count = at != NULL ? at[index + 1] - at[index] : j->T;
    return true;
}

/* Reads and widens columns of the chunk's `count` rows of a tensor [batch, T, channels]. */
static void read_columns(const carry_ssm_job *j, const carry_tensor *from, const carry_ssm_chunk *k, int64_t column,
                         int64_t width, float *to) {
    const int64_t channels = from->shape[2];
    const size_t size = carry_dtype_size(from->dtype);
    for (int i = 0; i < k->count; i++) {
        const int64_t at = (k->row * j->T + k->first + i) * channels + column;
        carry_widen(j->kernels, to + i * width, (const unsigned char *)from->data + (size_t)at * size, from->dtype,
                    width);
    }
}

void carry_ssm_read(const carry_ssm_job *j, carry_ssm_chunk *k) {
    const carry_ssm_args *args = j->args;
    const int64_t group = k->head * j->G / j->n;
    float dt[L];
    read_columns(j, &args->xbc, k, k->head * j->P, j->P, k->x);
    read_columns(j, &args->xbc, k, j->n * j->P + group * j->N, j->N, k->b);
    read_columns(j, &args->xbc, k, j->n * j->P + (j->G + group) * j->N, j->N, k->c);
    read_columns(j, &args->dt, k, k->head, 1, dt);
    k->rate = -exp((double)((const float *)args->A_log.data)[k->head]);
    double sum = 0.0;
    for (int i = 0; i < k->count; i++) {
        k->raw[i] = (double)dt[i] + (double)((const float *)args->dt_bias.data)[k->head];
        const double step = k->raw[i] > 40.0 ? k->raw[i] : log1p(exp(k->raw[i]));
        k->a[i] = step < (double)args->least  ? (double)args->least
                  : step > (double)args->most ? (double)args->most
                                              : step;
        sum += k->a[i] * k->rate;
        k->sum[i] = sum;
    }
}

void carry_ssm_product(const carry_ssm_job *j, int64_t m, int64_t n, int64_t k, const float *a, bool a_transposed,
                       const float *b, bool b_transposed, float *c, bool add) {
    j->kernels->product(&(carry_product){.m = m,
                                         .n = n,
                                         .k = k,
                                         .count = 1,
                                         .a = a,
                                         .a_row = a_transposed ? m : k,
                                         .b = b,
                                         .b_row = b_transposed ? k : n,
                                         .c = c,
                                         .c_row = n,
                                         .base = add ? c : NULL,
                                         .base_row = n,
                                         .a_transposed = a_transposed,
                                         .b_transposed = b_transposed});
}

void carry_ssm_scale(float *rows, int64_t width, int count, const double *factor) {
    for (int i = 0; i < count; i++) {
        for (int64_t l = 0; l < width; l++) {
            rows[i * width + l] *= (float)factor[i];
        }
    }
}

void carry_ssm_advance(const carry_ssm_job *j, const carry_ssm_chunk *k, float *S) {
    const double whole = k->sum[k->count - 1];
    const float fade = (float)exp(whole);
    double left[L];
    for (int i = 0; i < k->count; i++) {
        left[i] = exp(whole - k->sum[i]) * k->a[i];
    }
    carry_ssm_scale(k->b, j->N, k->count, left);
    for (int64_t l = 0; l < j->P * j->N; l++) {
        S[l] *= fade;
    }
    carry_ssm_product(j, j->P, j->N, k->count, k->x, true, k->b, false, S, true);
}

/* Computes the output of a chunk, and S after it. M is scratch, [L, L]. */
static void run_chunk(const carry_ssm_job *j, carry_ssm_chunk *k, float *S, float *M, float *y) {
    const carry_tensor *to = &j->args->y;
    const float D = ((const float *)j->args->D.data)[k->head];
    double fade[L];
    carry_ssm_read(j, k);
    carry_ssm_product(j, k->count, k->count, j->N, k->c, false, k->b, true, M, false);
    for (int i = 0; i < k->count; i++) {
        for (int l = 0; l < k->count; l++) {
            float *m = &M[i * k->count + l];
            *m = l <= i ? (float)((double)*m * exp(k->sum[i] - k->sum[l]) * k->a[l]) : 0.0f;
        }
        fade[i] = exp(k->sum[i]);
    }
    carry_ssm_product(j, k->count, j->P, k->count, M, false, k->x, false, y, false);
    carry_ssm_scale(k->c, j->N, k->count, fade);
    carry_ssm_product(j, k->count, j->P, j->N, k->c, false, S, true, y, true);
    for (int i = 0; i < k->count; i++) {
        for (int64_t p = 0; p < j->P; p++) {
            y[i * j->P + p] += D * k->x[i * j->P + p];
        }
        const int64_t at = ((k->row * j->T + k->first + i) * j->n + k->head) * j->P;
        carry_narrow(j->kernels, (unsigned char *)to->data + (size_t)at * carry_dtype_size(to->dtype), y + i * j->P,
                     to->dtype, j->P);
    }
    carry_ssm_advance(j, k, S);
}

static void run_heads(void *argument, int64_t begin, int64_t end, int worker) {
    const carry_ssm_job *j = argument;
    const carry_ssm_args *args = j->args;
    const int64_t size = j->P * j->N;
    float *at = j->space + worker * j->each;
    float *S = at;
    float *M = S + size;
    float *y = M + L * L;
    carry_ssm_chunk k = {.x = y + L * j->P};
    k.b = k.x + L * j->P;
    k.c = k.b + L * j->N;
    for (int64_t item = begin; item < end; item++) {
        int64_t first;
        int64_t count;
        k.row = item / j->n;
        k.head = item % j->n;
        for (int64_t s = 0; carry_ssm_sequence(j, s, &first, &count); s++) {
            const int64_t own = args->slots != NULL ? args->slots[k.row] * j->n + k.head : item;
            memset(S, 0, (size_t)size * sizeof *S);
            if (carry_is_here(&args->initial)) {
                memcpy(S, (const float *)args->initial.data + own * size, (size_t)size * sizeof *S);
            }
            for (int64_t t = 0; t < count; t += L) {
                k.first = first + t;
                k.count = (int)(count - t < L ? count - t : L);
                run_chunk(j, &k, S, M, y);
            }
            if (carry_is_here(&args->final)) {
                memcpy((float *)args->final.data + own * size, S, (size_t)size * sizeof *S);
            }
        }
    }
}

static int64_t floats_each(const carry_ssm_args *args) {
    const int64_t N = args->state;
    const int64_t P = args->heads > 0 ? (args->xbc.shape[2] - 2 * args->groups * N) / args->heads : 0;
    return P * N + L * L + 2 * L * P + 2 * L * N;
}

size_t carry_ssm_workspace(const carry_ctx *ctx, const carry_ssm_args *args) {
    if (args->xbc.device != 0) {
        return carry_ssm_layout_of(args, NULL, false).bytes;
    }
    return (size_t)floats_each(args) * sizeof(float) * (size_t)carry_ctx_threads(ctx);
}

carry_status carry_ssm(carry_ctx *ctx, const carry_ssm_args *args, void *workspace, size_t workspace_bytes) {
    CARRY_OPERATOR(ctx, operators, ssm, &args->xbc)
    CARRY_TRY(carry_ssm_check(ctx, args));
    CARRY_TRY(carry_expect_workspace(ctx, "ssm", workspace, workspace_bytes, carry_ssm_workspace(ctx, args),
                                     args->xbc.device));
    return operators->ssm(ctx, args, workspace);
}

carry_status carry_cpu_ssm(carry_ctx *ctx, const carry_ssm_args *args, void *workspace) {
    carry_ssm_job j;
    CARRY_TRY(carry_ssm_open(ctx, &j, args));
    j.space = workspace;
    j.each = floats_each(args);
    carry_parallel(ctx, args->xbc.shape[0] * j.n, 1, run_heads, &j);
    return CARRY_OK;
}
