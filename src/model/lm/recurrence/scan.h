/* Internals of the dense scans (scan.c, scan_backward.c).

   A unit is one value head of one row of the batch. A few units are processed at a time, since the transitions of a
   scan are large: T K K numbers for each unit. */
#ifndef CARRY_MODEL_RECURRENCE_SCAN_H
#define CARRY_MODEL_RECURRENCE_SCAN_H

#include "carry/scan.h"
#include "core/memory.h"
#include "delta/chunk.h"
#include "model/lm/recurrence/recurrence.h"

typedef struct carry_recurrence_scan {
    carry_ctx *ctx;
    void *device; /* a GPU's state (scan_device.h), which then does all the work; NULL: on the CPU */
    const char *algorithm;
    carry_delta_problem problem;
    carry_delta_plan *delta; /* describes a token (norms, gates, types); it is never run */
    carry_scan_plan *forward, *backward;
    bool linear;        /* without the delta rule's correction: A = e^g I */
    int64_t transition; /* number of elements of one A: K x K, or K */
    int64_t units, together;
    int64_t slices, slice; /* slices of a state of the caller, and the width of one (recurrence.h) */
    int64_t pool, slot;    /* rows of the pool, and the row of the sequence; pool 0: the states are not in a pool */
    size_t scan_bytes, workspace;
    char about[448]; /* text about the plan, with the name of its method */
} carry_recurrence_scan;

/* One token of one value head, as the recurrence uses it. Each thread has one. */
typedef struct carry_recurrence_token {
    carry_delta_rows rows; /* q, k: [K]; their norms */
    carry_delta_head head; /* g, beta, end[0] = e^g */
    float *v, *o, *sum[2]; /* [V] */
    float *on_k[2];        /* [K] */
} carry_recurrence_token;

typedef struct carry_recurrence_scan_work {
    carry_recurrence_scan *m;
    carry_delta_inputs in;
    const carry_delta_forward_args *forward;   /* NULL in backward */
    const carry_delta_backward_args *backward; /* NULL in forward */
    int64_t first;                             /* index of the first unit */
    int64_t *starts;                           /* [T]: the sequence that starts at a token of a packed row, or -1 */
    float *A;                                  /* [together, T, K, K], or [together, T, K]: its diagonal */
    float *S;                                  /* [together, T, K, V]: b, then the states */
    float *dS;                                 /* gradients of the same */
    float *dq, *dk;                            /* [B, T, H, K]: gradients summed over value heads, before the norm */
    float *dgate, *given;                      /* [together, T]: gradients of the gate, and of its input */
    carry_recurrence_token *token;             /* one for each thread */
    void *scan;
} carry_recurrence_scan_work;

/* Places all arrays in the arena, or only counts the bytes. */
void carry_recurrence_scan_take(const carry_recurrence_scan *m, carry_arena *arena, carry_recurrence_scan_work *w);
/* Fills the table of starts; call it after the inputs are checked. */
void carry_recurrence_scan_start(carry_recurrence_scan_work *w);
/* Computes A, and into S the states after every token, for units first .. first + together - 1. */
carry_status carry_recurrence_scan_states(carry_recurrence_scan_work *w);
carry_tensor carry_recurrence_scan_transitions(const carry_recurrence_scan_work *w); /* A */
/* Loads one token. item = unit * T + token, where unit counts from w->first. */
void carry_recurrence_scan_load(const carry_recurrence_scan_work *w, int64_t item, carry_recurrence_token *token);

/* The sequence that starts at token t of row b, or -1. */
static inline int64_t carry_recurrence_scan_starts(const carry_recurrence_scan_work *w, int64_t b, int64_t t) {
    return w->m->problem.sequences > 0 ? w->starts[t] : t == 0 ? b : -1;
}

/* The fraction of the value stored under a key that is erased before the new one is written: beta with the delta rule,
   else 0. */
static inline float carry_recurrence_scan_erased(const carry_recurrence_scan *m, const carry_recurrence_token *token) {
    return m->linear ? 0.0f : token->head.beta[0];
}

/* Row r of a slice of a state in the caller's tensor. */
static inline float *carry_recurrence_scan_state(const carry_recurrence_scan *m, const carry_tensor *states,
                                                 int64_t sequence, int64_t value_head, int64_t r, int64_t slice) {
    int64_t N = m->pool > 0 ? m->pool : m->problem.sequences > 0 ? m->problem.sequences : m->problem.batch;
    int64_t at = (slice * N + sequence + m->slot) * m->problem.value_heads + value_head;
    return (float *)states->data + (at * m->problem.key + r) * m->slice;
}

carry_status carry_recurrence_scan_backward(void *running, const carry_delta_backward_args *args, void *workspace,
                                            size_t bytes);

#endif
