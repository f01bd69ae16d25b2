/* Shared by carry stream and the problems stream:...: the model, and the pipeline options that depend on it. */
#ifndef CARRY_CLI_STREAM_MODEL_H
#define CARRY_CLI_STREAM_MODEL_H

#include "core/file.h"
#include "stream/pipeline.h"

typedef struct stream_model {
    char folder[CARRY_FILE_PATH];       /* the transformer's folder or single file; "": random weights */
    char text_encoder[CARRY_FILE_PATH]; /* found beside it; "": none */
    char codec[CARRY_FILE_PATH];        /* likewise */
    bool needs_text;                    /* the model was not trained on the fixed word vectors */
    carry_dit_config config;
} stream_model;

/* folder: a folder with config.json and weights, or of a training run; or a diffusers pipeline with transformer,
   text_encoder, tokenizer and vae; or a single file of weights with text_encoder and vae beside it. config: the name of
   a known shape, for random weights; folder is then ignored. Both NULL: the model that comes with carry, or
   CARRY_EUNSUPPORTED if it is not found. */
carry_status stream_model_choose(carry_ctx *ctx, stream_model *model, const char *folder, const char *config);

/* Pipeline options with the model and its chunk, window, sink and shift, or their defaults. The result points into
   the model. */
carry_pipeline_options stream_model_options(const stream_model *model);
/* The default controls with the model's steps and the demo's prompt. */
carry_control_state stream_model_controls(const stream_model *model);

/* Parses WxH in pixels, such as 64x64. */
bool stream_set_size(carry_pipeline_options *options, const char *text);
/* Sets the recompute mode with its context (0: one chunk), and turns the clean pass off. */
void stream_set_recompute(carry_pipeline_options *options, carry_recompute recompute, int64_t context);

#endif
