/* Internals of the runner of a model. */
#ifndef CARRY_ENGINE_MODEL_RUNNER_INSIDE_H
#define CARRY_ENGINE_MODEL_RUNNER_INSIDE_H

#include "carry/device.h"
#include "core/memory.h"
#include "engine/chain.h"
#include "engine/decode.h"
#include "engine/model_runner.h"
#include "engine/sample_device.h"
#include "engine/slot_device.h"
#include "model/lm/places.h"
#include "ops/kernels/kernels.h"

/* Lists of a call, in host memory or on the device. `pages` comes last, so that only the pages in use are sent. */
typedef struct carry_model_runner_lists {
    int32_t *slots, *offsets;
    int64_t *lengths, *positions, *rows, *wanted, *ids;
    int64_t *targets; /* for a runner that scores, else empty */
    /* Indices of rows of heads.hidden; empty without multi-token heads. For each row of the call: the row of the token
       before it. For each sequence: the row of its last token, and the row of its slot. */
    int64_t *before, *last_rows, *slot_rows;
    int32_t *pages;
} carry_model_runner_lists;

/* A step whose results have not been read. */
typedef struct carry_model_runner_pending {
    int64_t count;
    carry_run_result *results; /* [sequences] */
    /* For a runner that scores: */
    float *losses; /* [tokens], in host memory; on a GPU it is pinned */
    int64_t *rows; /* [sequences, 2]: the first row of each run, and their number */
    carry_event *done;
} carry_model_runner_pending;

#define CARRY_MODEL_RUNNER_PENDING 2 /* maximum number of steps */
#define CARRY_RUN_NO_TARGET (-100)   /* a label of carry_lm_args that does not count */

/* On a device that records graphs, calls with only single tokens are padded to one of CARRY_MODEL_RUNNER_BUCKETS
   numbers of sequences. Padding reads and writes the runner's own slot and page. */
#define CARRY_MODEL_RUNNER_BUCKETS 13
typedef struct carry_model_runner_bucket {
    bool has_run; /* it ran once, so everything is set up */
    carry_graph *graph;
} carry_model_runner_bucket;

/* The same for guesses: `waves` tokens of each of `texts` texts. */
#define CARRY_MODEL_RUNNER_WAVES 8
typedef struct carry_model_runner_waves {
    int64_t texts, waves; /* 0: not used yet */
    carry_model_runner_bucket bucket;
} carry_model_runner_waves;

/* Multi-token heads (model_runner_heads.c). */
typedef struct carry_model_runner_heads {
    carry_lm *lm; /* NULL: none */
    carry_lm_state *pool;
    carry_lm_pass *pass;
    void *memory, *tables;
    carry_tensor
        hidden; /* [slots + 1 + tokens, hidden_size]: of the last token of each slot, then of the call's rows */
    carry_tensor before;            /* [tokens, hidden_size] */
    carry_device_sampler *sampling; /* NULL: the host finds the likeliest tokens */
    carry_run *drafts;              /* [sequences] */
    carry_run_result *results;      /* [sequences] */
} carry_model_runner_heads;

typedef struct carry_model_runner {
    carry_runner head; /* first: a carry_runner is cast to it */
    carry_lm *lm;
    int device;
    carry_dtype dtype;
    carry_state_types types;
    bool same_bits, scores;
    carry_model_runner_heads heads;
    float *losses_there; /* [tokens], for a runner that scores on a GPU */
    int64_t page_list;   /* maximum number of pages of one sequence */
    carry_lm_state *pool;
    carry_lm_pass *pass;
    void *memory;                                               /* memory of the pass */
    void *host, *there;                                         /* memory of the lists, in host memory and on the device
                                                                   (NULL on the CPU) */
    carry_model_runner_lists lists[CARRY_MODEL_RUNNER_PENDING]; /* in host memory: one for each step in progress */
    carry_model_runner_lists list, listed; /* lists of this step, in host memory; and where the pass reads them */
    int64_t *starts, *wave, *borders;      /* [sequences + 1] */
    int64_t *order;                        /* [sequences]: the index of the run of each sequence of the call */
    int64_t *row_of;                       /* [sequences]: the row of each run in the logits; -1: not wanted */
    carry_lm_places places;
    size_t list_bytes; /* bytes of the lists in use */
    void *logits_memory;
    carry_tensor logits, wide; /* [sequences, vocabulary] on the model's device: in the pass's type, and in f32 */
    float *host_logits;        /* wide in host memory */
    int32_t *last; /* [slots]: the last token sampled; -1: none. With a sampler on the device, where the tokens stay:
                      0 for any token */
    const carry_kernels *kernels;
    int workers;
    carry_sampler **sampler; /* of each worker */
    float **altered;         /* [vocabulary] for each worker: logits with penalties, biases and masks */
    carry_model_runner_pending pending[CARRY_MODEL_RUNNER_PENDING];
    int oldest, waiting; /* of `pending`: index of the oldest, and count */
    unsigned steps;      /* number of steps so far */
    /* On a GPU that samples: tokens stay on it, and a step returns as soon as it is enqueued. */
    carry_device_sampler *sampling;
    int32_t *last_there;  /* [slots + 1], on the device */
    carry_decode *decode; /* runs steps of a few sequences in one kernel; NULL: the model or device is not supported */
    carry_chain *chain;   /* runs steps of more sequences with a few kernels per layer; NULL: not supported */
    const carry_slot_kernel *copies;
    carry_slot_part *parts; /* on the device: the parts of a slot, then those of a page */
    void *packed;           /* on the device: a page that is moved to or from host memory; NULL: there are no pages */
    int slot_parts, page_parts, ordinal;
    carry_run *single; /* [sequences], with same_bits on a GPU: runs of one token each */
    bool records;      /* steps of single tokens can be recorded */
    carry_model_runner_bucket bucket[CARRY_MODEL_RUNNER_BUCKETS];
    carry_model_runner_waves guessed[CARRY_MODEL_RUNNER_WAVES];
    bool *in_ring;         /* [slots]: a slot's rings may have tokens; NULL: no rings */
    unsigned padded_steps; /* with rings */
    int64_t ring_least;    /* smallest number of sequences, padding included, whose steps use rings */
    carry_stream *stream;  /* made for the context; NULL: the context had one, or the device is the CPU */
} carry_model_runner;

/* model_runner_call.c: check fails for an invalid call before anything is changed; list fills in the lists of a
   call. */
carry_status carry_model_runner_check(const carry_model_runner *r, const carry_run *runs, int64_t count);
carry_status carry_model_runner_list(carry_model_runner *r, const carry_run *runs, int64_t count);
/* Places the lists in an arena; if the arena's memory is NULL, only counts the bytes. */
void carry_model_runner_take_lists(const carry_model_runner *r, carry_arena *arena, carry_model_runner_lists *lists);

/* model_runner_graph.c: sends the lists of a call with only single tokens to the device and runs it. A call without
   guesses is padded to the size of a bucket, if one is large enough. A call with a bucket is recorded when its shape
   occurs the second time, and then replayed; others are launched directly. */
carry_status carry_model_runner_replay(carry_model_runner *r);
void carry_model_runner_open_graphs(carry_model_runner *r);
void carry_model_runner_close_graphs(carry_model_runner *r);
/* The number of sequences to which replay pads the call. */
int64_t carry_model_runner_padded(const carry_model_runner *r);
/* model_runner_rings.c. least: as in carry_model_runner_options. begin: decides whether the call whose lists are filled
   in uses rings, and folds the slots of runs that do not. fold: call before a slot is used otherwise. */
carry_status carry_model_runner_open_rings(carry_model_runner *r, int64_t least);
void carry_model_runner_close_rings(carry_model_runner *r);
carry_status carry_model_runner_begin_rings(carry_model_runner *r, const carry_run *runs, int64_t count);
carry_status carry_model_runner_fold(carry_model_runner *r, int32_t slot);
/* model_runner.c: runs the call whose lists are filled in and were sent; gives logits in f32 on the device. */
carry_status carry_model_runner_enqueue(carry_model_runner *r);
/* The options of the passes of the model and of its heads. */
carry_lm_pass_options carry_model_runner_pass_options(const carry_model_runner *r);

/* model_runner_sample.c: samples tokens of the runs from logits in host memory. Log probabilities are those of the
   model's logits; the token is sampled from the logits after repetition penalty, bias and mask. Not used if the device
   samples. */
void carry_model_runner_sample(carry_model_runner *r, const carry_run *runs, int64_t count, carry_run_result *results);
carry_status carry_model_runner_open_samplers(carry_model_runner *r);
void carry_model_runner_close_samplers(carry_model_runner *r);

/* model_runner_device.c: work of a GPU without the host: sampling, decoding steps, copies of states. */
carry_status carry_model_runner_open_device(carry_model_runner *r);
void carry_model_runner_close_device(carry_model_runner *r);
/* Enqueues the call whose lists are filled in, and the sampling of its tokens. */
carry_status carry_model_runner_run_there(carry_model_runner *r, const carry_run *runs, int64_t count);
/* Copies row `from` to row `to` in all parts of slots, or of pages; zeroes row `to` if `from` is negative. */
carry_status carry_model_runner_copy_there(carry_model_runner *r, bool of_page, int32_t to, int32_t from);
/* Reads a page into `to`, or writes it if `to` is NULL. */
carry_status carry_model_runner_move_page(carry_model_runner *r, int32_t page, void *to, const void *from);

/* model_runner_heads.c: multi-token heads. */
carry_status carry_model_runner_open_heads(carry_model_runner *r);
void carry_model_runner_close_heads(carry_model_runner *r);
/* Fills in their lists for the sequences of a call from `first` on. */
void carry_model_runner_list_heads(carry_model_runner *r, int64_t first);
/* Where a call puts the hidden states of its rows; note: lets the heads read them and the call's tokens. */
carry_tensor carry_model_runner_hidden(const carry_model_runner *r, int64_t rows);
carry_status carry_model_runner_note(carry_model_runner *r);
carry_status carry_model_runner_draft(carry_runner *runner, const carry_run *runs, int64_t count, int64_t most,
                                      int32_t *guesses);

/* model_runner_score.c: computes the losses of tokens instead of sampling. */
carry_status carry_model_runner_open_scores(carry_model_runner *r);
void carry_model_runner_close_scores(carry_model_runner *r);
/* Runs the call whose lists are filled in. */
carry_status carry_model_runner_score(carry_model_runner *r, int64_t count);
carry_status carry_model_runner_scores(carry_runner *runner, double *losses, int64_t count);

/* model_runner_pool.c: the operations on slots and pages. */
/* An iteration over the memory pieces of a slot or a page. */
typedef struct carry_model_runner_walk {
    int64_t layer, part, slice;
    bool is_in_heads; /* among the parts of multi-token heads, which come last */
} carry_model_runner_walk;
/* Gets the next piece; false past the last. */
bool carry_model_runner_next_piece(const carry_model_runner *r, bool of_page, int64_t index,
                                   carry_model_runner_walk *at, void **data, size_t *bytes);
carry_status carry_model_runner_clear_slot(carry_runner *runner, int32_t slot);
carry_status carry_model_runner_copy_slot(carry_runner *runner, int32_t to, int32_t from);
carry_status carry_model_runner_copy_page(carry_runner *runner, int32_t to, int32_t from);
carry_status carry_model_runner_read_slot(carry_runner *runner, void *to, int32_t slot);
carry_status carry_model_runner_write_slot(carry_runner *runner, int32_t slot, const void *from);
carry_status carry_model_runner_read_page(carry_runner *runner, void *to, int32_t page);
carry_status carry_model_runner_write_page(carry_runner *runner, int32_t page, const void *from);

#endif
