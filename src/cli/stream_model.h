/* Shared by carry stream and the problems stream:...: the model, and its part of a pipeline. */
#ifndef CARRY_CLI_STREAM_MODEL_H
#define CARRY_CLI_STREAM_MODEL_H

#include "core/file.h"
#include "stream/pipeline.h"

typedef struct stream_model {
    char folder[CARRY_FILE_PATH];       /* of the transformer, or its single file; "": random weights */
    char text_encoder[CARRY_FILE_PATH]; /* found beside it; "": none */
    char codec[CARRY_FILE_PATH];        /* likewise */
    bool needs_text;                    /* it was not trained on the fixed vectors of words */
    carry_dit_config config;
} stream_model;

/* A folder with config.json and weights; or as diffusers lays a pipeline out, with transformer, text_encoder, tokenizer
   and vae in it; or a single file of weights, with those beside it; or the name of a known shape for random weights;
   both NULL: the model that comes with carry, and CARRY_EUNSUPPORTED if it is not installed. */
carry_status stream_model_choose(carry_ctx *ctx, stream_model *model, const char *folder, const char *config);

/* The model, with its chunk, window, sink and shift, or their defaults. The result points to the model. */
carry_pipeline_options stream_model_options(const stream_model *model);
/* The default, with the model's steps and the demo's prompt. */
carry_control_state stream_model_controls(const stream_model *model);

/* WxH in pixels, such as 64x64. */
bool stream_set_size(carry_pipeline_options *options, const char *text);
/* With what follows from it: its context (0: a chunk), and no clean pass. */
void stream_set_recompute(carry_pipeline_options *options, carry_recompute recompute, int64_t context);

#endif
