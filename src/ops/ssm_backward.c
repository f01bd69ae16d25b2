/* A state space layer backward on the CPU. A thread has one group of heads of one row of the batch, whose gradients of
   B and C it adds up in the order of heads. States at the start of chunks are computed again.

   For a chunk, with a and A as in ssm.h, let G[i] = A (a[0] + ... + a[i]), E[i,j] = e^(G[i] - G[j]) for j <= i, else 0,
   K[i,j] = dy[i] . x[j], W[i,j] = E[i,j] C[i] . B[j] and left[j] = e^(G[last] - G[j]). S is the state before the chunk,
   and dS the gradient of the state after it. Sums run over the index that the left side lacks:

       dx[j] = D dy[j] + a[j] (sum W[i,j] dy[i] + left[j] dS B[j])
       dC[i] = sum E[i,j] a[j] K[i,j] B[j] + e^G[i] S^T dy[i]
       dB[j] = sum E[i,j] a[j] K[i,j] C[i] + a[j] left[j] dS^T x[j]
       da[j] = sum W[i,j] K[i,j] + left[j] x[j] . dS B[j] + A (dG[j] + ... + dG[last])
       gradient of S = e^G[last] dS + sum e^G[i] dy[i] C[i]^T

   where dG[i] is the gradient of G[i]. */
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

typedef struct back_job {
    carry_ssm_job forward;
    const carry_ssm_backward_args *args;
    double *sums; /* [batch, n, 3]: dA_log, ddt_bias, dD */
} back_job;

/* Memory of a thread. */
typedef struct room {
    carry_ssm_chunk k;
    float *states;      /* [chunks, P, N], before each chunk of a sequence */
    float *dS;          /* [P, N] */
    float *dB, *dC;     /* [T, N] */
    float *W, *K;       /* [L, L] */
    float *dy, *dx, *t; /* [L, P] */
    float *u, *b;       /* [L, N] */
} room;

static int64_t floats_each(const carry_ssm_args *args) {
    const int64_t N = args->state;
    const int64_t T = args->xbc.shape[1];
    const int64_t P = args->heads > 0 ? (args->xbc.shape[2] - 2 * args->groups * N) / args->heads : 0;
    return (T / L + 2) * P * N + 2 * T * N + 2 * L * L + 4 * L * P + 4 * L * N;
}

static room room_of(const carry_ssm_job *j, int worker) {
    room r = {.states = j->space + worker * j->each};
    r.dS = r.states + (j->T / L + 1) * j->P * j->N;
    r.dB = r.dS + j->P * j->N;
    r.dC = r.dB + j->T * j->N;
    r.W = r.dC + j->T * j->N;
    r.K = r.W + L * L;
    r.dy = r.K + L * L;
    r.dx = r.dy + L * j->P;
    r.t = r.dx + L * j->P;
    r.k.x = r.t + L * j->P;
    r.u = r.k.x + L * j->P;
    r.b = r.u + L * j->N;
    r.k.b = r.b + L * j->N;
    r.k.c = r.k.b + L * j->N;
    return r;
}

static void read_dy(const back_job *b, room *r) {
    const carry_ssm_job *j = &b->forward;
    const carry_tensor *from = &b->args->dy;
    for (int i = 0; i < r->k.count; i++) {
        const int64_t at = ((r->k.row * j->T + r->k.first + i) * j->n + r->k.head) * j->P;
        carry_widen(j->kernels, r->dy + i * j->P,
                    (const unsigned char *)from->data + (size_t)at * carry_dtype_size(from->dtype), from->dtype, j->P);
    }
}

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* Replaces W and K by W a and E a K, and adds the contributions of pairs of tokens to da and dG. */
static void pairs(const carry_ssm_job *j, room *r, double *da, double *dG) {
    const carry_ssm_chunk *k = &r->k;
    const int n = k->count;
    carry_ssm_product(j, n, n, j->N, k->c, false, k->b, true, r->W, false);
    carry_ssm_product(j, n, n, j->P, r->dy, false, k->x, true, r->K, false);
    for (int i = 0; i < n; i++) {
        for (int l = 0; l < n; l++) {
            float *w = &r->W[i * n + l];
            float *both = &r->K[i * n + l];
            if (l > i) {
                *w = *both = 0.0f;
                continue;
            }
            const double E = exp(k->sum[i] - k->sum[l]);
            const double direct = (double)*w * E * (double)*both;
            da[l] += direct;
            dG[i] += direct * k->a[l];
            dG[l] -= direct * k->a[l];
            *w = (float)((double)*w * E * k->a[l]);
            *both = (float)((double)*both * E * k->a[l]);
        }
    }
}

/* Computes the gradients of x, of B and C (added), of G, and of a apart from its effect on G; dS then becomes the
   gradient of the state before the chunk. S: the state before the chunk. */
static void chunk_back(const carry_ssm_job *j, room *r, const float *S, float D, double *da, double *dG) {
    const carry_ssm_chunk *k = &r->k;
    const int n = k->count;
    const int64_t P = j->P;
    const int64_t N = j->N;
    const double whole = k->sum[n - 1];
    double fade[L];
    double left[L];
    float *dB = r->dB + k->first * N;
    float *dC = r->dC + k->first * N;
    pairs(j, r, da, dG);
    carry_ssm_product(j, n, P, n, r->W, true, r->dy, false, r->dx, false);
    carry_ssm_product(j, n, P, N, k->b, false, r->dS, true, r->t, false);
    carry_ssm_product(j, n, N, n, r->K, false, k->b, false, dC, true);
    carry_ssm_product(j, n, N, n, r->K, true, k->c, false, dB, true);
    carry_ssm_product(j, n, N, P, r->dy, false, S, false, r->u, false);
    carry_ssm_product(j, n, N, P, k->x, false, r->dS, false, r->b, false);
    dG[n - 1] += exp(whole) * dot(S, r->dS, P * N);
    for (int i = 0; i < n; i++) {
        fade[i] = exp(k->sum[i]);
        left[i] = exp(whole - k->sum[i]);
        const double added = left[i] * dot(k->x + i * P, r->t + i * P, P);
        da[i] += added;
        dG[n - 1] += added * k->a[i];
        dG[i] -= added * k->a[i];
        dG[i] += fade[i] * dot(k->c + i * N, r->u + i * N, N);
        const float by_state = (float)(k->a[i] * left[i]);
        for (int64_t p = 0; p < P; p++) {
            r->dx[i * P + p] += by_state * r->t[i * P + p] + D * r->dy[i * P + p];
        }
        for (int64_t l = 0; l < N; l++) {
            dC[i * N + l] += (float)fade[i] * r->u[i * N + l];
            dB[i * N + l] += by_state * r->b[i * N + l];
        }
    }
    for (int64_t l = 0; l < P * N; l++) {
        r->dS[l] *= (float)exp(whole);
    }
    carry_ssm_scale(r->dy, P, n, fade);
    carry_ssm_product(j, P, N, n, r->dy, true, k->c, false, r->dS, true);
}

/* Computes the gradients of dt and of the head's parameters from those of a and G. */
static void steps_back(const back_job *b, const room *r, const double *da, const double *dG, double *sums) {
    const carry_ssm_job *j = &b->forward;
    const carry_ssm_chunk *k = &r->k;
    const carry_tensor *to = &b->args->ddt;
    double dg = 0.0;
    for (int i = k->count - 1; i >= 0; i--) {
        dg += dG[i];
        sums[0] += dg * k->rate * k->a[i];
        const bool free = k->a[i] > (double)j->args->least && k->a[i] < (double)j->args->most;
        const float ddt = free ? (float)((da[i] + dg * k->rate) / (1.0 + exp(-k->raw[i]))) : 0.0f;
        sums[1] += (double)ddt;
        const int64_t at = (k->row * j->T + k->first + i) * j->n + k->head;
        carry_narrow(j->kernels, (unsigned char *)to->data + (size_t)at * carry_dtype_size(to->dtype), &ddt, to->dtype,
                     1);
    }
}

/* Stores rows of `width` elements to columns of dxbc. */
static void put_columns(const back_job *b, const room *r, int64_t first, int64_t count, int64_t column, int64_t width,
                        const float *from) {
    const carry_ssm_job *j = &b->forward;
    const carry_tensor *to = &b->args->dxbc;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = (r->k.row * j->T + first + i) * j->channels + column;
        carry_narrow(j->kernels, (unsigned char *)to->data + (size_t)at * carry_dtype_size(to->dtype), from + i * width,
                     to->dtype, width);
    }
}

/* One sequence of one head: states forward, then gradients backward. */
static void sequence_back(const back_job *b, room *r, int64_t first, int64_t count, double *sums) {
    const carry_ssm_job *j = &b->forward;
    const int64_t size = j->P * j->N;
    const float D = ((const float *)j->args->D.data)[r->k.head];
    const int64_t chunks = (count + L - 1) / L;
    memset(r->states, 0, (size_t)size * sizeof(float));
    memset(r->dS, 0, (size_t)size * sizeof(float));
    for (int64_t i = 0; i + 1 < chunks; i++) {
        r->k.first = first + i * L;
        r->k.count = L;
        carry_ssm_read(j, &r->k);
        memcpy(r->states + (i + 1) * size, r->states + i * size, (size_t)size * sizeof(float));
        carry_ssm_advance(j, &r->k, r->states + (i + 1) * size);
    }
    for (int64_t i = chunks - 1; i >= 0; i--) {
        double da[L] = {0};
        double dG[L] = {0};
        r->k.first = first + i * L;
        r->k.count = (int)(count - i * L < L ? count - i * L : L);
        carry_ssm_read(j, &r->k);
        read_dy(b, r);
        sums[2] += dot(r->dy, r->k.x, r->k.count * j->P);
        chunk_back(j, r, r->states + i * size, D, da, dG);
        steps_back(b, r, da, dG, sums);
        put_columns(b, r, r->k.first, r->k.count, r->k.head * j->P, j->P, r->dx);
    }
}

static void run_groups(void *argument, int64_t begin, int64_t end, int worker) {
    const back_job *b = argument;
    const carry_ssm_job *j = &b->forward;
    room r = room_of(j, worker);
    const int64_t heads = j->n / j->G;
    for (int64_t item = begin; item < end; item++) {
        const int64_t group = item % j->G;
        int64_t first;
        int64_t count;
        r.k.row = item / j->G;
        memset(r.dB, 0, (size_t)(j->T * j->N) * sizeof(float));
        memset(r.dC, 0, (size_t)(j->T * j->N) * sizeof(float));
        for (int64_t h = 0; h < heads; h++) {
            r.k.head = group * heads + h;
            double *sums = b->sums + (r.k.row * j->n + r.k.head) * 3;
            sums[0] = sums[1] = sums[2] = 0.0;
            for (int64_t s = 0; carry_ssm_sequence(j, s, &first, &count); s++) {
                sequence_back(b, &r, first, count, sums);
            }
        }
        put_columns(b, &r, 0, j->T, j->n * j->P + group * j->N, j->N, r.dB);
        put_columns(b, &r, 0, j->T, j->n * j->P + (j->G + group) * j->N, j->N, r.dC);
    }
}

static size_t sums_bytes(const carry_ssm_args *args) {
    return (size_t)(args->xbc.shape[0] * args->heads) * 3 * sizeof(double);
}

size_t carry_ssm_backward_workspace(const carry_ctx *ctx, const carry_ssm_args *args) {
    if (args->xbc.device != 0) {
        return carry_ssm_layout_of(args, NULL, true).bytes;
    }
    return sizeof(double) + sums_bytes(args) +
           (size_t)floats_each(args) * sizeof(float) * (size_t)carry_ctx_threads(ctx);
}

carry_status carry_ssm_backward(carry_ctx *ctx, const carry_ssm_backward_args *args, void *workspace,
                                size_t workspace_bytes) {
    CARRY_OPERATOR(ctx, operators, ssm_backward, &args->forward.xbc)
    const carry_ssm_args *f = &args->forward;
    CARRY_TRY(carry_ssm_check(ctx, f));
    CARRY_TRY(carry_expect_like(ctx, "dy", &args->dy, &f->y));
    CARRY_TRY(carry_expect_like(ctx, "dxbc", &args->dxbc, &f->xbc));
    CARRY_TRY(carry_expect_like(ctx, "ddt", &args->ddt, &f->dt));
    CARRY_TRY(carry_expect_f32(ctx, "dA_log", &args->dA_log, 1, &f->heads, f->xbc.device));
    CARRY_TRY(carry_expect_f32(ctx, "ddt_bias", &args->ddt_bias, 1, &f->heads, f->xbc.device));
    CARRY_TRY(carry_expect_f32(ctx, "dD", &args->dD, 1, &f->heads, f->xbc.device));
    if (carry_is_here(&f->initial) || carry_is_here(&f->final)) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "ssm_backward: states have no gradients");
    }
    CARRY_TRY(carry_expect_workspace(ctx, "ssm_backward", workspace, workspace_bytes,
                                     carry_ssm_backward_workspace(ctx, f), f->xbc.device));
    return operators->ssm_backward(ctx, args, workspace);
}

carry_status carry_cpu_ssm_backward(carry_ctx *ctx, const carry_ssm_backward_args *args, void *workspace) {
    const carry_ssm_args *f = &args->forward;
    back_job b = {.args = args};
    float *to[] = {args->dA_log.data, args->ddt_bias.data, args->dD.data};
    CARRY_TRY(carry_ssm_open(ctx, &b.forward, f));
    b.sums = (double *)(((uintptr_t)workspace + sizeof(double) - 1) / sizeof(double) * sizeof(double));
    b.forward.space = (float *)(void *)((unsigned char *)b.sums + sums_bytes(f));
    b.forward.each = floats_each(f);
    carry_parallel(ctx, f->xbc.shape[0] * f->groups, 1, run_groups, &b);
    for (int64_t i = 0; i < f->xbc.shape[0] * f->heads; i++) {
        for (int part = 0; part < 3; part++) {
            to[part][i % f->heads] += (float)b.sums[i * 3 + part];
        }
    }
    return CARRY_OK;
}
