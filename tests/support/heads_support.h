/* A small Qwen3.5 checkpoint with multi-token heads, and the guesses of those heads computed by plain loops in double.

   The vocabulary is as large as the hidden size. So a copy of the model whose lm_head is the identity gives the hidden
   states of a text as its logits: the reference needs nothing from the code that it checks. */
#ifndef CARRY_TESTS_HEADS_SUPPORT_H
#define CARRY_TESTS_HEADS_SUPPORT_H

#include "hybrid_support.h"

#include <unistd.h>

#include "file/safetensors.h"

enum {
    HEADS_H = 32,
    HEADS_Q = 4,
    HEADS_KV = 2,
    HEADS_D = 8,
    HEADS_TURNED = 4,
    HEADS_WIDTH = 40,
    HEADS_TENSORS = 15,
    HEADS_LONGEST = 160
};

/* The tensors in the order of this list. */
enum {
    HEADS_FC,
    HEADS_EMBEDDING_NORM,
    HEADS_HIDDEN_NORM,
    HEADS_NORM,
    HEADS_INPUT_NORM,
    HEADS_POST_NORM,
    HEADS_Q_PROJ,
    HEADS_K_PROJ,
    HEADS_V_PROJ,
    HEADS_O_PROJ,
    HEADS_Q_NORM,
    HEADS_K_NORM,
    HEADS_GATE,
    HEADS_UP,
    HEADS_DOWN
};

typedef struct heads_case {
    carry_ctx *ctx;
    char folder[64];
    carry_lm *mirror; /* the model with lm_head = identity */
    float embeddings[HEADS_H * HEADS_H], head[HEADS_H * HEADS_H];
    float w[HEADS_TENSORS][2 * HEADS_H * HEADS_WIDTH];
} heads_case;

static const struct {
    const char *name;
    int64_t rows, columns; /* columns 0: a vector */
} heads_tensor[HEADS_TENSORS] = {
    {"mtp.fc.weight", HEADS_H, 2 * HEADS_H},
    {"mtp.pre_fc_norm_embedding.weight", HEADS_H, 0},
    {"mtp.pre_fc_norm_hidden.weight", HEADS_H, 0},
    {"mtp.norm.weight", HEADS_H, 0},
    {"mtp.layers.0.input_layernorm.weight", HEADS_H, 0},
    {"mtp.layers.0.post_attention_layernorm.weight", HEADS_H, 0},
    {"mtp.layers.0.self_attn.q_proj.weight", HEADS_Q * 2 * HEADS_D, HEADS_H},
    {"mtp.layers.0.self_attn.k_proj.weight", HEADS_KV *HEADS_D, HEADS_H},
    {"mtp.layers.0.self_attn.v_proj.weight", HEADS_KV *HEADS_D, HEADS_H},
    {"mtp.layers.0.self_attn.o_proj.weight", HEADS_H, HEADS_Q *HEADS_D},
    {"mtp.layers.0.self_attn.q_norm.weight", HEADS_D, 0},
    {"mtp.layers.0.self_attn.k_norm.weight", HEADS_D, 0},
    {"mtp.layers.0.mlp.gate_proj.weight", HEADS_WIDTH, HEADS_H},
    {"mtp.layers.0.mlp.up_proj.weight", HEADS_WIDTH, HEADS_H},
    {"mtp.layers.0.mlp.down_proj.weight", HEADS_H, HEADS_WIDTH},
};

static inline carry_lm_config heads_config(void) {
    carry_lm_config c = carry_lm_config_default(&carry_lm_family_qwen3_5);
    carry_lm_hybrid_of(&c)->layers_listed = 3;
    c.vocab_size = c.hidden_size = HEADS_H;
    c.num_hidden_layers = 3;
    c.mixer[1] = CARRY_LM_MIXER_ATTENTION;
    memset(c.feedforward, CARRY_LM_FEEDFORWARD_SWIGLU, sizeof c.feedforward);
    c.swiglu.width = HEADS_WIDTH;
    c.delta.heads = 2;
    c.delta.value_heads = 4;
    c.delta.key = c.delta.value = 8;
    c.attention.heads = HEADS_Q;
    c.attention.kv_heads = HEADS_KV;
    c.attention.head_dim = HEADS_D;
    c.attention.rotary_factor = (double)HEADS_TURNED / HEADS_D;
    c.pad_token_id = c.eos_token_id = -1;
    return c;
}

static inline float heads_random(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*random >> 40) / (double)(1 << 24) - 0.5);
}

/* Writes the checkpoint; with `is_easy` the model depends mostly on its last token and the heads on theirs, so that
   most guesses are right. */
static inline void heads_write(heads_case *c, carry_lm *lm, bool is_easy) {
    carry_safetensors_item items[96];
    char path[96];
    uint64_t random = 11;
    int64_t count = 0;
    for (int64_t i = 0; i < lm->own.parameters; i++) {
        items[count++] = (carry_safetensors_item){
            .name = lm->own.parameter[i].name, .tensor = carry_lm_weight(lm, i), .dtype = CARRY_F32};
    }
    for (int i = 0; i < HEADS_TENSORS; i++) {
        const int64_t columns = heads_tensor[i].columns;
        const int64_t shape[] = {heads_tensor[i].rows, columns};
        for (int64_t j = 0; j < shape[0] * (columns > 0 ? columns : 1); j++) {
            const float part = i == HEADS_FC && is_easy ? 0.01f : is_easy ? 0.2f : 1.0f;
            const bool is_diagonal = i == HEADS_FC && is_easy && j / columns == j % columns;
            c->w[i][j] = part * heads_random(&random) + (is_diagonal ? 1.0f : 0.0f);
        }
        items[count++] = (carry_safetensors_item){.name = heads_tensor[i].name,
                                                  .tensor = carry_view(c->w[i], CARRY_F32, columns > 0 ? 2 : 1, shape),
                                                  .dtype = CARRY_F32};
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors", c->folder);
    assert_ok(c->ctx, carry_safetensors_write(c->ctx, path, items, count, NULL));
}

static inline void heads_open(heads_case *c, carry_ctx *ctx, bool is_easy) {
    *c = (heads_case){.ctx = ctx};
    (void)snprintf(c->folder, sizeof c->folder, "/tmp/carry-heads-XXXXXX");
    assert_non_null(mkdtemp(c->folder));
    carry_lm *lm = model_scaled(ctx, heads_config(), is_easy ? 4.0f : 12.0f);
    const carry_tensor table = carry_lm_weight(lm, lm->embeddings);
    const carry_tensor head = carry_lm_weight(lm, lm->head);
    for (int64_t i = 0; is_easy && i < HEADS_H * HEADS_H; i++) {
        ((float *)table.data)[i] *= 10.0f;
    }
    memcpy(c->embeddings, table.data, sizeof c->embeddings);
    memcpy(c->head, head.data, sizeof c->head);
    assert_ok(ctx, carry_lm_save(lm, c->folder, CARRY_F32));
    heads_write(c, lm, is_easy);
    for (int64_t i = 0; i < HEADS_H * HEADS_H; i++) {
        ((float *)head.data)[i] = i / HEADS_H == i % HEADS_H ? 1.0f : 0.0f;
    }
    c->mirror = lm;
}

static inline void heads_close(heads_case *c) {
    char path[96];
    carry_lm_free(c->mirror);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", c->folder);
    (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/config.json", c->folder);
    (void)unlink(path);
    (void)rmdir(c->folder);
}

/* y = norm(x) (1 + w) of n elements. */
static inline void heads_rms(const double *x, const float *w, int n, double eps, double *y) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    for (int i = 0; i < n; i++) {
        y[i] = x[i] / sqrt(sum / n + eps) * (1.0 + (double)w[i]);
    }
}

static inline void heads_product(const float *w, int64_t rows, int64_t columns, const double *x, double *y) {
    for (int64_t i = 0; i < rows; i++) {
        y[i] = 0.0;
        for (int64_t j = 0; j < columns; j++) {
            y[i] += (double)w[i * columns + j] * x[j];
        }
    }
}

static inline void heads_turn(double *x, int64_t position, double theta) {
    for (int i = 0; i < HEADS_TURNED / 2; i++) {
        const double angle = (double)position * pow(theta, -2.0 * i / HEADS_TURNED);
        const double a = x[i];
        const double b = x[i + HEADS_TURNED / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + HEADS_TURNED / 2] = b * cos(angle) + a * sin(angle);
    }
}

typedef struct heads_cache {
    double k[HEADS_LONGEST][HEADS_KV][HEADS_D], v[HEADS_LONGEST][HEADS_KV][HEADS_D];
} heads_cache;

static inline void heads_attend(const heads_case *c, heads_cache *cache, int64_t at, const double *x, double *out) {
    const double eps = c->mirror->config.norm_eps;
    const double theta = c->mirror->config.attention.rope_theta;
    double q[2 * HEADS_Q * HEADS_D], k[HEADS_KV * HEADS_D], v[HEADS_KV * HEADS_D], o[HEADS_Q * HEADS_D];
    heads_product(c->w[HEADS_Q_PROJ], 2 * HEADS_Q * HEADS_D, HEADS_H, x, q);
    heads_product(c->w[HEADS_K_PROJ], HEADS_KV * HEADS_D, HEADS_H, x, k);
    heads_product(c->w[HEADS_V_PROJ], HEADS_KV * HEADS_D, HEADS_H, x, v);
    for (int h = 0; h < HEADS_KV; h++) {
        heads_rms(k + h * HEADS_D, c->w[HEADS_K_NORM], HEADS_D, eps, cache->k[at][h]);
        heads_turn(cache->k[at][h], at, theta);
        memcpy(cache->v[at][h], v + h * HEADS_D, HEADS_D * sizeof *v);
    }
    for (int h = 0; h < HEADS_Q; h++) { /* each head has its query, then its gate */
        const int group = h / (HEADS_Q / HEADS_KV);
        double one[HEADS_D], sum = 0.0, mix[HEADS_D] = {0.0};
        heads_rms(q + 2 * h * HEADS_D, c->w[HEADS_Q_NORM], HEADS_D, eps, one);
        heads_turn(one, at, theta);
        for (int64_t t = 0; t <= at; t++) {
            double score = 0.0;
            for (int i = 0; i < HEADS_D; i++) {
                score += one[i] * cache->k[t][group][i];
            }
            const double weight = exp(score / sqrt(HEADS_D));
            sum += weight;
            for (int i = 0; i < HEADS_D; i++) {
                mix[i] += weight * cache->v[t][group][i];
            }
        }
        for (int i = 0; i < HEADS_D; i++) {
            o[h * HEADS_D + i] = mix[i] / sum / (1.0 + exp(-q[(2 * h + 1) * HEADS_D + i]));
        }
    }
    heads_product(c->w[HEADS_O_PROJ], HEADS_H, HEADS_Q * HEADS_D, o, out);
}

/* The entry at position `at`: y = norm(layer(fc [norm(embedding), norm(before)])). */
static inline void heads_entry(const heads_case *c, heads_cache *cache, int64_t at, int32_t id, const double *before,
                               double *y) {
    const double eps = c->mirror->config.norm_eps;
    double both[2 * HEADS_H], x[HEADS_H], n[HEADS_H], more[HEADS_H], gate[HEADS_WIDTH], up[HEADS_WIDTH];
    for (int i = 0; i < HEADS_H; i++) {
        n[i] = (double)c->embeddings[id * HEADS_H + i];
    }
    heads_rms(n, c->w[HEADS_EMBEDDING_NORM], HEADS_H, eps, both);
    heads_rms(before, c->w[HEADS_HIDDEN_NORM], HEADS_H, eps, both + HEADS_H);
    heads_product(c->w[HEADS_FC], HEADS_H, 2 * HEADS_H, both, x);
    heads_rms(x, c->w[HEADS_INPUT_NORM], HEADS_H, eps, n);
    heads_attend(c, cache, at, n, more);
    for (int i = 0; i < HEADS_H; i++) {
        x[i] += more[i];
    }
    heads_rms(x, c->w[HEADS_POST_NORM], HEADS_H, eps, n);
    heads_product(c->w[HEADS_GATE], HEADS_WIDTH, HEADS_H, n, gate);
    heads_product(c->w[HEADS_UP], HEADS_WIDTH, HEADS_H, n, up);
    for (int i = 0; i < HEADS_WIDTH; i++) {
        up[i] *= gate[i] / (1.0 + exp(-gate[i]));
    }
    heads_product(c->w[HEADS_DOWN], HEADS_H, HEADS_WIDTH, up, more);
    for (int i = 0; i < HEADS_H; i++) {
        x[i] += more[i];
    }
    heads_rms(x, c->w[HEADS_NORM], HEADS_H, eps, y);
}

/* Writes `most` guesses of the tokens after ids[0..count-1]; returns the smallest distance between the two largest
   logits of a guess. */
static inline double heads_guess(const heads_case *c, const int32_t *ids, int64_t count, int64_t most,
                                 int32_t *guesses) {
    static heads_cache cache;
    int64_t wide[HEADS_LONGEST];
    static float hidden[HEADS_LONGEST * HEADS_H];
    double y[HEADS_H], logits[HEADS_H], apart_least = INFINITY;
    assert_true(count + most <= HEADS_LONGEST);
    for (int64_t i = 0; i < count; i++) {
        wide[i] = ids[i];
    }
    const int64_t shape[] = {1, count, HEADS_H};
    assert_ok(c->ctx, run_once(c->mirror, &(carry_lm_pass_options){.batch = 1, .tokens = count, .forward_only = true},
                               &(carry_lm_args){.ids = carry_view(wide, CARRY_I64, 2, shape),
                                                .logits = carry_view(hidden, CARRY_F32, 3, shape)}));
    for (int64_t at = 0; at < count + most - 1; at++) {
        double before[HEADS_H] = {0.0};
        for (int i = 0; i < HEADS_H && at > 0; i++) {
            before[i] = at < count ? (double)hidden[(at - 1) * HEADS_H + i] : y[i];
        }
        heads_entry(c, &cache, at, at < count ? ids[at] : guesses[at - count], before, y);
        if (at >= count - 1) {
            int best = 0;
            double second = -INFINITY;
            heads_product(c->head, HEADS_H, HEADS_H, y, logits);
            for (int i = 1; i < HEADS_H; i++) {
                best = logits[i] > logits[best] ? i : best;
            }
            for (int i = 0; i < HEADS_H; i++) {
                second = i != best && logits[i] > second ? logits[i] : second;
            }
            guesses[at - count + 1] = best;
            apart_least = fmin(apart_least, logits[best] - second);
        }
    }
    return apart_least;
}

#endif
