/* Internals of the model of carry/model.h. */
#ifndef CARRY_ENGINE_LLM_H
#define CARRY_ENGINE_LLM_H

#include "carry/model.h"
#include "engine/model_folder.h"
#include "model/lm/lm.h"

/* State of carry_llm_train_step, made when it is first called. */
typedef struct carry_llm_training {
    carry_lm_pass *pass; /* of the last batch's shape */
    void *memory;
    int64_t batch, tokens, steps;
    void *room; /* memory of the fields below, on the model's device */
    carry_tensor m, v, squares, clip, spared;
    void *workspace;
    size_t workspace_bytes;
} carry_llm_training;

struct carry_llm {
    carry_ctx *ctx;
    carry_lm *lm;
    carry_dtype dtype;
    int64_t ends[CARRY_MODEL_ENDS + 2]; /* end tokens, for carry_llm_ends */
    int end_count;                      /* -1: not read yet */
    int generating;                     /* depth of nested calls of carry_llm_generate */
    bool is_closed;                     /* closed by a callback of such a call: freed when the outermost call returns */
    carry_llm_training training;
};

void carry_llm_training_free(carry_llm *model);

#endif
