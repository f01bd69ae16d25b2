/* Evaluation of a video transformer: does it show what its captions say? Streams of a few chunks are generated for
   prompts with the few-step sampler and the cache, decoded, and judged only by their pixels. */
#ifndef CARRY_TRAIN_DIT_EVALUATE_H
#define CARRY_TRAIN_DIT_EVALUATE_H

#include "model/dit/dit.h"
#include "train/dit/shapes_judge.h"

typedef struct carry_dit_evaluation_options {
    int64_t side, chunks; /* pixels; chunks of a stream */
    double speed;
    int forms; /* number of forms with which every colour and direction is tested: 1 to 3 */
    uint64_t seed;
    bool turns; /* half-way the prompt changes in all its words, and the second half is judged by the new one */
} carry_dit_evaluation_options;

typedef struct carry_dit_evaluation {
    int64_t prompts, colours, directions, both; /* right */
    int64_t turned;    /* streams that also followed the second prompt, in colour and direction */
    double step_error; /* mean error of the step, in pixels per frame */
} carry_dit_evaluation;

/* The shape that a stream changes to half-way. */
carry_shape carry_dit_evaluation_second(carry_shape first);

/* Generates the stream of a prompt. */
typedef struct carry_dit_streamer carry_dit_streamer;
carry_status carry_dit_streamer_new(carry_dit *dit, carry_dit_streamer **made, int64_t side);
void carry_dit_streamer_free(carry_dit_streamer *s);
/* A hard cut: the next chunk begins a stream with this seed. */
void carry_dit_streamer_cut(carry_dit_streamer *s, uint64_t seed);
carry_status carry_dit_streamer_prompt(carry_dit_streamer *s, const char *prompt);
/* Generates the next chunk's frames, [chunk_frames, 3, side, side]. A stream that exceeds the positions is cut. */
carry_status carry_dit_streamer_chunk(carry_dit_streamer *s, float *frames);

/* Evaluates every colour in every direction. `asked` is called after each stream and may be NULL; if it returns false,
   the evaluation ends. frames has all frames of the stream. If the prompt changes half-way, `second` is the verdict on
   the second half; otherwise it is NULL. */
typedef bool (*carry_dit_asked)(void *user, const char *prompt, carry_shape shape, const carry_shapes_verdict *verdict,
                                const carry_shapes_verdict *second, const float *frames, int64_t count);
carry_status carry_dit_evaluate(carry_dit *dit, const carry_dit_evaluation_options *options,
                                carry_dit_evaluation *evaluation, carry_dit_asked asked, void *user);

#endif
