/* The losses of rows of tokens by a model, call by call.

   On the CPU a call is done when carry_scorer_run returns. On a GPU it is put into a stream, as one replayed graph
   where all calls have the same shape (model/lm/lm_repeat.h), and the host prepares the rows of the next call
   meanwhile: they go up through two slots of pinned memory.

       carry_scorer_rows: where the next rows go; fill them
       carry_scorer_take: the result of the call before, if there is one that was not taken
       carry_scorer_run */
#ifndef CARRY_ENGINE_SCORER_H
#define CARRY_ENGINE_SCORER_H

#include "model/lm/lm_repeat.h"

#define CARRY_SCORER_SLOTS 2

typedef struct carry_scorer {
    carry_ctx *ctx;
    carry_lm *lm;
    carry_dtype dtype;
    carry_lm_state *state; /* carried from call to call, a row each; NULL: rows know nothing of each other */
    int64_t most;          /* tokens of a call, at most */
    carry_lm_pass *pass;   /* of rows by length */
    int64_t rows, length;
    void *memory;
    size_t memory_bytes;
    int64_t *slot[CARRY_SCORER_SLOTS]; /* [2, most] each: ids, then labels */
    int next;                          /* the slot of the next call */
    bool is_pending;                   /* a call was begun and its result not taken */
    int64_t counted;                   /* labels of that call */
    double loss;                       /* its sum, on the CPU */
    /* On a GPU: */
    void *there;          /* [2, most] ids and labels, then the sums of a call */
    carry_tensor total;   /* [2], f64 */
    double *sums;         /* the same in pinned memory */
    carry_stream *stream; /* made for the context; NULL: it had one */
    carry_lm_repeat repeat;
} carry_scorer;

typedef struct carry_scorer_options {
    int64_t most;      /* tokens of a call */
    carry_dtype dtype; /* to compute in */
    bool has_state;    /* of one row, carried along */
    bool no_graph;     /* launch kernels one by one */
} carry_scorer_options;

/* Can be closed from then on, whatever fails. */
carry_status carry_scorer_open(carry_lm *lm, carry_scorer *s, const carry_scorer_options *options);
void carry_scorer_close(carry_scorer *s);

/* Where ids and labels of the next call go: rows x length each, at most `most`. They stay what they are until the call
   after it has been run. A label of -100 is not counted. */
void carry_scorer_rows(carry_scorer *s, int64_t **input, int64_t **label);
/* The call before must have been taken. */
carry_status carry_scorer_run(carry_scorer *s, int64_t rows, int64_t length);
/* Waits for the last call and returns its sum of losses and its number of labels; *is_there is false if no call is
   pending. */
carry_status carry_scorer_take(carry_scorer *s, bool *is_there, double *loss, int64_t *counted);

#endif
