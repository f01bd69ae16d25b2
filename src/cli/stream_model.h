/* What carry stream and problems stream:... share: which model, and what it brings to a pipeline. */
#ifndef CARRY_CLI_STREAM_MODEL_H
#define CARRY_CLI_STREAM_MODEL_H

#include "core/file.h"
#include "stream/pipeline.h"

typedef struct stream_model {
    char folder[CARRY_FILE_PATH]; /* "": random weights */
    carry_dit_config config;
} stream_model;

/* A folder, or the name of a known shape for random weights; both NULL: the model that comes with carry, and
   CARRY_EUNSUPPORTED where it is not here. */
carry_status stream_model_choose(carry_ctx *ctx, stream_model *model, const char *folder, const char *config);

/* The model, with its chunk, window, sink and shift, or those of a model that says nothing. It is pointed to. */
carry_pipeline_options stream_model_options(const stream_model *model);
/* The default, with the model's steps and the demo's prompt. */
carry_control_state stream_model_controls(const stream_model *model);

/* WxH in pixels, such as 64x64. */
bool stream_set_size(carry_pipeline_options *options, const char *text);
/* With what follows from it: its context (0: a chunk), and no clean pass. */
void stream_set_recompute(carry_pipeline_options *options, carry_recompute recompute, int64_t context);

#endif
