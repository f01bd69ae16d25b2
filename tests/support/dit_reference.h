/* The video transformer in float64 without optimizations: all frames at once, and every query checks for every frame
   whether it sees it. No cache, no ring, no runs: a frame sees its own chunk, the sink, and the frames of the window
   that ends with its chunk. */
#ifndef CARRY_TESTS_DIT_REFERENCE_H
#define CARRY_TESTS_DIT_REFERENCE_H

#include "support.h"

#include <math.h>

#include "core/tensor.h"
#include "model/dit/dit_parts.h"

/* A sequence of frames in chunks, each with its own diffusion time. */
typedef struct reference_video {
    const float *latents; /* [in_dim, frames, height, width] */
    const float *text;    /* [text_rows, text_dim] */
    int64_t text_rows, frames, height, width;
    const int64_t *start; /* the first frame of each frame's chunk */
    const int64_t *end;   /* ... and ends */
    const double *t;      /* of every frame */
    int64_t window, sink;
    double bias; /* added to the scores of frames that are neither the first visible one nor in the query's chunk */
} reference_video;

typedef struct reference_dit {
    const carry_dit *dit;
    const reference_video *video;
    int64_t rows, columns, per_frame, tokens;
    double *x;                /* [tokens, dim] */
    double *text;             /* [text_len, dim] */
    double *time, *projected; /* for every frame: [dim], [6 dim] */
} reference_dit;

static inline SUPPORT_UNWATCHED double *reference_new(int64_t count) {
    double *made = calloc((size_t)count + 1, sizeof *made);
    assert_non_null(made);
    return made;
}

/* y = W x + b. */
static inline SUPPORT_UNWATCHED double *reference_affine(carry_tensor W, carry_tensor b, const double *x, int64_t T) {
    const int64_t out = W.shape[0], in = W.shape[1];
    const float *weight = W.data, *bias = b.data;
    double *y = reference_new(T * out);
    for (int64_t i = 0; i < T * out; i++) {
        double sum = (double)bias[i % out];
        for (int64_t j = 0; j < in; j++) {
            sum += (double)weight[i % out * in + j] * x[i / out * in + j];
        }
        y[i] = sum;
    }
    return y;
}

static inline SUPPORT_UNWATCHED double *reference_outer(const reference_dit *r, carry_dit_outer weight, const double *x,
                                                        int64_t T) {
    return reference_affine(carry_dit_outer_weight(r->dit, weight),
                            carry_dit_outer_weight(r->dit, (carry_dit_outer)(weight + 1)), x, T);
}

static inline SUPPORT_UNWATCHED double *reference_inner(const reference_dit *r, int64_t block, carry_dit_slot weight,
                                                        const double *x, int64_t T) {
    return reference_affine(carry_dit_block_weight(r->dit, block, weight),
                            carry_dit_block_weight(r->dit, block, carry_dit_bias(weight)), x, T);
}

static inline SUPPORT_UNWATCHED void reference_silu(double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        x[i] /= 1.0 + exp(-x[i]);
    }
}

static inline SUPPORT_UNWATCHED void reference_gelu(double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        x[i] *= 0.5 * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
    }
}

static inline SUPPORT_UNWATCHED void reference_rms(const reference_dit *r, carry_tensor w, double *x, int64_t T) {
    const int64_t dim = r->dit->config.dim;
    for (int64_t t = 0; w.data != NULL && t < T; t++) {
        double squares = 0.0;
        for (int64_t i = 0; i < dim; i++) {
            squares += x[t * dim + i] * x[t * dim + i];
        }
        for (int64_t i = 0; i < dim; i++) {
            x[t * dim + i] *= (double)((const float *)w.data)[i] / sqrt(squares / (double)dim + r->dit->config.eps);
        }
    }
}

static inline SUPPORT_UNWATCHED void reference_normalise(const reference_dit *r, double *to, const double *x) {
    const int64_t dim = r->dit->config.dim;
    double mean = 0.0, variance = 0.0;
    for (int64_t i = 0; i < dim; i++) {
        mean += x[i] / (double)dim;
    }
    for (int64_t i = 0; i < dim; i++) {
        variance += (x[i] - mean) * (x[i] - mean) / (double)dim;
    }
    for (int64_t i = 0; i < dim; i++) {
        to[i] = (x[i] - mean) / sqrt(variance + r->dit->config.eps);
    }
}

/* Modulation m[which] of a block for the frame of a token. */
static inline SUPPORT_UNWATCHED double reference_modulation(const reference_dit *r, int64_t block, int64_t token,
                                                            int which, int64_t i) {
    const int64_t dim = r->dit->config.dim, frame = token / r->per_frame;
    const float *own = carry_dit_block_weight(r->dit, block, CARRY_DIT_MODULATION).data;
    return (double)own[which * dim + i] + r->projected[(frame * 6 + which) * dim + i];
}

static inline SUPPORT_UNWATCHED double *reference_modulated(const reference_dit *r, int64_t block, int shift) {
    const int64_t dim = r->dit->config.dim;
    double *y = reference_new(r->tokens * dim);
    for (int64_t t = 0; t < r->tokens; t++) {
        reference_normalise(r, y + t * dim, r->x + t * dim);
        for (int64_t i = 0; i < dim; i++) {
            y[t * dim + i] = y[t * dim + i] * (1.0 + reference_modulation(r, block, t, shift + 1, i)) +
                             reference_modulation(r, block, t, shift, i);
        }
    }
    return y;
}

/* Rotates pair p of a head by the position along its axis: time, height or width. */
static inline SUPPORT_UNWATCHED void reference_turn(const reference_dit *r, double *x, int64_t token, int64_t p) {
    const int64_t pairs = r->dit->config.dim / r->dit->config.num_heads / 2;
    const int64_t third = 2 * pairs / 6, time = pairs - 2 * third, place = token % r->per_frame;
    const int64_t part = p < time ? time : third;
    const int64_t at = p < time ? token / r->per_frame : p < time + third ? place / r->columns : place % r->columns;
    const int64_t index = p < time ? p : (p - time) % third;
    const double angle = (double)at * pow(10000.0, -2.0 * (double)index / (double)(2 * part));
    const double a = x[0], b = x[1];
    x[0] = a * cos(angle) - b * sin(angle);
    x[1] = a * sin(angle) + b * cos(angle);
}

/* True if frame `from` sees frame `to`; *first is set if `to` is the oldest frame that it can see. */
static inline SUPPORT_UNWATCHED bool reference_sees(const reference_video *v, int64_t from, int64_t to, bool *first) {
    const int64_t end = v->end[from], low = end - (v->window - v->sink);
    const int64_t oldest = v->sink > 0 ? 0 : low > 0 ? low : 0;
    *first = to == oldest;
    return to < end && (to < v->sink || to >= low);
}

/* keys: those of the tokens, with a mask, or those of the text. */
static inline SUPPORT_UNWATCHED double *reference_attention(const reference_dit *r, const double *q, const double *k,
                                                            const double *v, int64_t keys, bool masked) {
    const carry_dit_config *c = &r->dit->config;
    const int64_t dim = c->dim, head = dim / c->num_heads;
    double *o = reference_new(r->tokens * dim), *score = reference_new(keys);
    for (int64_t t = 0; t < r->tokens; t++) {
        for (int64_t h = 0; h < c->num_heads; h++) {
            double most = -INFINITY, sum = 0.0;
            for (int64_t j = 0; j < keys; j++) {
                const int64_t from = t / r->per_frame, to = j / r->per_frame;
                bool first = false;
                score[j] = -INFINITY;
                if (masked && !reference_sees(r->video, from, to, &first)) {
                    continue;
                }
                double dot = 0.0;
                for (int64_t i = 0; i < head; i++) {
                    dot += q[t * dim + h * head + i] * k[j * dim + h * head + i];
                }
                bool biased = masked && !first && to < r->video->start[from];
                score[j] = dot / sqrt((double)head) + (biased ? r->video->bias : 0.0);
                most = score[j] > most ? score[j] : most;
            }
            for (int64_t j = 0; j < keys; j++) {
                score[j] = exp(score[j] - most);
                sum += score[j];
            }
            for (int64_t j = 0; j < keys; j++) {
                for (int64_t i = 0; i < head && score[j] > 0.0; i++) {
                    o[t * dim + h * head + i] += score[j] / sum * v[j * dim + h * head + i];
                }
            }
        }
    }
    free(score);
    return o;
}

static inline SUPPORT_UNWATCHED void reference_self(reference_dit *r, int64_t block) {
    const carry_dit_config *c = &r->dit->config;
    const int64_t dim = c->dim, head = dim / c->num_heads;
    double *a = reference_modulated(r, block, 0);
    double *q = reference_inner(r, block, CARRY_DIT_Q, a, r->tokens);
    double *k = reference_inner(r, block, CARRY_DIT_K, a, r->tokens);
    double *v = reference_inner(r, block, CARRY_DIT_V, a, r->tokens);
    reference_rms(r, carry_dit_block_weight(r->dit, block, CARRY_DIT_NORM_Q), q, r->tokens);
    reference_rms(r, carry_dit_block_weight(r->dit, block, CARRY_DIT_NORM_K), k, r->tokens);
    for (int64_t i = 0; i < r->tokens * dim / 2; i++) {
        reference_turn(r, q + 2 * i, 2 * i / dim, i % (head / 2));
        reference_turn(r, k + 2 * i, 2 * i / dim, i % (head / 2));
    }
    double *o = reference_attention(r, q, k, v, r->tokens, true);
    double *y = reference_inner(r, block, CARRY_DIT_O, o, r->tokens);
    for (int64_t i = 0; i < r->tokens * dim; i++) {
        r->x[i] += reference_modulation(r, block, i / dim, 2, i % dim) * y[i];
    }
    free(a), free(q), free(k), free(v), free(o), free(y);
}

static inline SUPPORT_UNWATCHED void reference_cross(reference_dit *r, int64_t block) {
    const carry_dit_config *c = &r->dit->config;
    const int64_t dim = c->dim;
    double *b = reference_new(r->tokens * dim);
    for (int64_t t = 0; t < r->tokens; t++) {
        memcpy(b + t * dim, r->x + t * dim, (size_t)dim * sizeof *b);
        if (c->cross_attn_norm) {
            const float *w = carry_dit_block_weight(r->dit, block, CARRY_DIT_NORM3).data;
            const float *bias = carry_dit_block_weight(r->dit, block, CARRY_DIT_NORM3_BIAS).data;
            reference_normalise(r, b + t * dim, r->x + t * dim);
            for (int64_t i = 0; i < dim; i++) {
                b[t * dim + i] = b[t * dim + i] * (double)w[i] + (double)bias[i];
            }
        }
    }
    double *q = reference_inner(r, block, CARRY_DIT_CROSS_Q, b, r->tokens);
    double *k = reference_inner(r, block, CARRY_DIT_CROSS_K, r->text, c->text_len);
    double *v = reference_inner(r, block, CARRY_DIT_CROSS_V, r->text, c->text_len);
    reference_rms(r, carry_dit_block_weight(r->dit, block, CARRY_DIT_CROSS_NORM_Q), q, r->tokens);
    reference_rms(r, carry_dit_block_weight(r->dit, block, CARRY_DIT_CROSS_NORM_K), k, c->text_len);
    double *o = reference_attention(r, q, k, v, c->text_len, false);
    double *y = reference_inner(r, block, CARRY_DIT_CROSS_O, o, r->tokens);
    for (int64_t i = 0; i < r->tokens * dim; i++) {
        r->x[i] += y[i];
    }
    free(b), free(q), free(k), free(v), free(o), free(y);
}

static inline SUPPORT_UNWATCHED void reference_feed(reference_dit *r, int64_t block) {
    const int64_t dim = r->dit->config.dim;
    double *c = reference_modulated(r, block, 3);
    double *hidden = reference_inner(r, block, CARRY_DIT_FFN_UP, c, r->tokens);
    reference_gelu(hidden, r->tokens * r->dit->config.ffn_dim);
    double *y = reference_inner(r, block, CARRY_DIT_FFN_DOWN, hidden, r->tokens);
    for (int64_t i = 0; i < r->tokens * dim; i++) {
        r->x[i] += reference_modulation(r, block, i / dim, 5, i % dim) * y[i];
    }
    free(c), free(hidden), free(y);
}

/* The index of element (channel, frame, height, width) of a token's patch, from its position in the patch. */
static inline SUPPORT_UNWATCHED int64_t reference_place(const reference_dit *r, int64_t token, int64_t channel,
                                                        int64_t a, int64_t b) {
    const carry_dit_config *c = &r->dit->config;
    const int64_t place = token % r->per_frame;
    const int64_t row = place / r->columns * c->patch[1] + a, column = place % r->columns * c->patch[2] + b;
    return ((channel * r->video->frames + token / r->per_frame) * r->video->height + row) * r->video->width + column;
}

static inline SUPPORT_UNWATCHED void reference_embed(reference_dit *r) {
    const carry_dit_config *c = &r->dit->config;
    const int64_t area = c->patch[1] * c->patch[2], size = c->in_dim * area, half = c->freq_dim / 2;
    double *patches = reference_new(r->tokens * size), *text = reference_new(c->text_len * c->text_dim);
    for (int64_t i = 0; i < r->tokens * size; i++) {
        const int64_t e = i % size;
        patches[i] =
            (double)r->video->latents[reference_place(r, i / size, e / area, e % area / c->patch[2], e % c->patch[2])];
    }
    r->x = reference_outer(r, CARRY_DIT_PATCH, patches, r->tokens);
    for (int64_t i = 0; i < r->video->text_rows * c->text_dim; i++) {
        text[i] = (double)r->video->text[i];
    }
    double *hidden = reference_outer(r, CARRY_DIT_TEXT_0, text, c->text_len);
    reference_gelu(hidden, c->text_len * c->dim);
    r->text = reference_outer(r, CARRY_DIT_TEXT_2, hidden, c->text_len);
    double *waves = reference_new(r->video->frames * c->freq_dim);
    for (int64_t i = 0; i < r->video->frames * half; i++) {
        const double angle = r->video->t[i / half] * pow(10000.0, -(double)(i % half) / (double)half);
        waves[i / half * c->freq_dim + i % half] = cos(angle);
        waves[i / half * c->freq_dim + half + i % half] = sin(angle);
    }
    double *inner = reference_outer(r, CARRY_DIT_TIME_0, waves, r->video->frames);
    reference_silu(inner, r->video->frames * c->dim);
    r->time = reference_outer(r, CARRY_DIT_TIME_2, inner, r->video->frames);
    memcpy(inner, r->time, (size_t)(r->video->frames * c->dim) * sizeof *inner);
    reference_silu(inner, r->video->frames * c->dim);
    r->projected = reference_outer(r, CARRY_DIT_PROJECTION, inner, r->video->frames);
    free(patches), free(text), free(hidden), free(waves), free(inner);
}

/* The velocity, [out_dim, frames, height, width]; the caller frees it. */
static inline SUPPORT_UNWATCHED double *reference_velocity(const carry_dit *dit, const reference_video *video) {
    const carry_dit_config *c = &dit->config;
    reference_dit r = {.dit = dit, .video = video};
    r.rows = video->height / c->patch[1];
    r.columns = video->width / c->patch[2];
    r.per_frame = r.rows * r.columns;
    r.tokens = video->frames * r.per_frame;
    reference_embed(&r);
    for (int64_t block = 0; block < c->num_layers; block++) {
        reference_self(&r, block);
        reference_cross(&r, block);
        reference_feed(&r, block);
    }
    const float *own = carry_dit_outer_weight(dit, CARRY_DIT_HEAD_MODULATION).data;
    for (int64_t t = 0; t < r.tokens; t++) {
        const double *e = r.time + t / r.per_frame * c->dim;
        double *x = r.x + t * c->dim;
        reference_normalise(&r, x, x);
        for (int64_t i = 0; i < c->dim; i++) {
            x[i] = x[i] * (1.0 + (double)own[c->dim + i] + e[i]) + (double)own[i] + e[i];
        }
    }
    const int64_t size = c->out_dim * c->patch[1] * c->patch[2];
    double *patches = reference_outer(&r, CARRY_DIT_HEAD, r.x, r.tokens);
    double *velocity = reference_new(r.tokens * size);
    for (int64_t i = 0; i < r.tokens * size; i++) {
        const int64_t e = i % size, place = e / c->out_dim;
        velocity[reference_place(&r, i / size, e % c->out_dim, place / c->patch[2], place % c->patch[2])] = patches[i];
    }
    free(r.x), free(r.text), free(r.time), free(r.projected), free(patches);
    return velocity;
}

#endif
