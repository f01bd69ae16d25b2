/* The data of a run: a text with its tokenizer, or a synthetic task; and the data for its evaluation.

   If a text has no tokenizer, one is trained: byte-level BPE, by rank 0 on the first 4 MiB in a fraction of a second,
   with a vocabulary of 512 to 4096 tokens that depends on the size of the text.

   Examples for fine-tuning (.jsonl, train/data/examples.h) are packed into rows; they are evaluated with a separate
   file or not at all.

   The evaluation uses text that is not trained on: a separate file, or the last twentieth of a text (at most 64 rows)
   if the text is one window of the corpus and has at least 20 rows. A larger text is cut into new rows in every epoch,
   so that no row can be held out: it is evaluated with a separate file or not at all. A task is evaluated with rows of
   another seed. */
#ifndef CARRY_TRAIN_MATERIAL_H
#define CARRY_TRAIN_MATERIAL_H

#include "carry/comm.h"
#include "train/data/corpus.h"
#include "train/data/examples.h"
#include "train/options.h"
#include "train/data/tasks.h"

typedef struct carry_held_out {
    carry_source source; /* the source whose rows are split */
    bool is_examined;    /* gives the rows that are held out; false: the other rows */
} carry_held_out;

typedef struct carry_material {
    carry_tokenizer *tokenizer; /* NULL: a task */
    carry_corpus *corpus;
    carry_corpus *evaluated;                       /* opened when it is first needed */
    carry_examples *examples, *evaluated_examples; /* NULL: a text or a task */
    carry_task_rows rows, evaluated_rows;
    carry_held_out held, evaluated_held;
    carry_source source;    /* rows to train on */
    const carry_task *task; /* NULL: a text */
    uint32_t crc;           /* identifies the text; 0: a task */
    int64_t length;         /* tokens of a row */
    double rows_of_epoch;   /* approximate; infinite for a task */
    bool can_hold_back;     /* the text has enough rows to hold some out, and is one window */
} carry_material;

/* A collective. folder: a checkpoint or model whose tokenizer is used if options name none; or NULL. Sets
   options->length and vocab if they are 0. */
carry_status carry_material_open(carry_comm *comm, carry_material *material, carry_train_options *options,
                                 const char *folder);
void carry_material_close(carry_material *material);

/* Gets the source of the evaluation; *is_there is false if the run has no evaluation. */
carry_status carry_material_held_out(carry_ctx *ctx, carry_material *material, const carry_train_options *options,
                                     carry_source *source, bool *is_there);

#endif
