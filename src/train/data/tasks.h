/* Synthetic tasks: rows that are generated, each depending only on seed and index. They test the abilities of a
   recurrent state: recall, tracking, copying.

   carry_task_list is the only list of tasks; a task consists of the functions of carry_task. */
#ifndef CARRY_TRAIN_TASKS_H
#define CARRY_TRAIN_TASKS_H

#include "train/data/source.h"

typedef struct carry_task_size {
    int64_t length;     /* tokens of a row; 0: the task's default */
    int64_t vocabulary; /* 0: the task's default */
    int64_t pairs;      /* pairs of associative recall; 0: the smaller of length / 8 and vocabulary / 4 */
    int64_t fewest;     /* rows of recall have this many pairs, or twice as many, and so on up to `pairs`; 0: always
                           `pairs` */
} carry_task_size;

typedef struct carry_task {
    const char *name, *about;
    int64_t length, vocabulary; /* defaults */
    /* Fills in sizes that are 0, and fails with a message if the sizes do not fit. */
    carry_status (*check)(carry_ctx *ctx, carry_task_size *size);
    /* Makes row `index`; label is CARRY_NO_LABEL where there is no question. */
    void (*make)(const carry_task_size *size, uint64_t seed, int64_t index, int64_t *input, int64_t *label);
    /* Compares `count` predictions with the labels; returns the number of correct ones. *asked: the number of labels
       that count. */
    int64_t (*score)(const int64_t *prediction, const int64_t *label, int64_t count, int64_t *asked);
} carry_task;

extern const carry_task *const carry_task_list[];    /* ends with NULL */
const carry_task *carry_task_find(const char *name); /* or NULL */

/* A task as an endless source of rows. Training and evaluation use different seeds. */
typedef struct carry_task_rows {
    const carry_task *task;
    carry_task_size size;
    uint64_t seed;
} carry_task_rows;
/* Fills in rows, which must outlive the source. CARRY_ENOTFOUND lists the existing tasks. */
carry_status carry_task_open(carry_ctx *ctx, carry_task_rows *rows, carry_source *source, const char *name,
                             carry_task_size size, uint64_t seed);

#endif
