/* Synthetic tasks: rows that are made rather than read, each a function of seed and number. They test the abilities of
   a recurrent state: recall, tracking, copying.

   carry_task_list is the only list of them; a task consists of the functions of carry_task. */
#ifndef CARRY_TRAIN_TASKS_H
#define CARRY_TRAIN_TASKS_H

#include "train/data/source.h"

typedef struct carry_task_size {
    int64_t length;     /* tokens of a row; 0: the task's own */
    int64_t vocabulary; /* 0: the task's own */
    int64_t pairs;      /* of associative recall; 0: a quarter of what fits */
    int64_t fewest;     /* rows of recall have this many pairs, twice as many and so on up to pairs; 0: pairs, all */
} carry_task_size;

typedef struct carry_task {
    const char *name, *about;
    int64_t length, vocabulary; /* where none is given */
    /* An error message when the size does not fit, after filling in what is 0. */
    carry_status (*check)(carry_ctx *ctx, carry_task_size *size);
    /* Row `index`; label is CARRY_NO_LABEL where nothing is asked. */
    void (*make)(const carry_task_size *size, uint64_t seed, int64_t index, int64_t *input, int64_t *label);
    /* Of count predictions, how many of the labels that count are right; *asked of them there are. */
    int64_t (*score)(const int64_t *prediction, const int64_t *label, int64_t count, int64_t *asked);
} carry_task;

extern const carry_task *const carry_task_list[];    /* NULL at its end */
const carry_task *carry_task_find(const char *name); /* or NULL */

/* A task as a source of rows without end. Rows of training and of evaluation differ by their seed. */
typedef struct carry_task_rows {
    const carry_task *task;
    carry_task_size size;
    uint64_t seed;
} carry_task_rows;
/* Fills rows, which the source borrows. CARRY_ENOTFOUND names the tasks that there are. */
carry_status carry_task_open(carry_ctx *ctx, carry_task_rows *rows, carry_source *source, const char *name,
                             carry_task_size size, uint64_t seed);

#endif
