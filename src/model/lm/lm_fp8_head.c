/* The head's loss and gradients with products in 8-bit floats: logits in f16, and dx from gradients in e5m2. A block of
   tokens at a time has its logits in memory. The gradient of the weight is a product of bf16. */
#include "carry/ops.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "model/lm/lm_fp8.h"
#include "model/lm/lm_pass.h"

#define BLOCK 4096 /* tokens; the fastest of 2304, 4096 and 8192 in bf16 (docs/attempts/training-gpu.md) */

typedef struct head_memory {
    unsigned char *weight, *turned, *x, *dlogits;
    void *logits;
    int64_t block;
} head_memory;

static void take(head_memory *m, carry_arena *arena, const carry_lm_pass *pass, int64_t words, int64_t hidden) {
    m->block = pass->tokens < BLOCK ? pass->tokens : BLOCK;
    m->weight = carry_arena_take(arena, (size_t)(words * hidden), 1);
    m->turned = carry_arena_take(arena, (size_t)(words * hidden), 1);
    m->x = carry_arena_take(arena, (size_t)(m->block * hidden), 1);
    m->dlogits = carry_arena_take(arena, (size_t)(m->block * words), 1);
    m->logits = carry_arena_take(arena, (size_t)(m->block * words), sizeof(uint16_t));
}

size_t carry_lm_fp8_head_bytes(const carry_lm_pass *pass) {
    const carry_lm_fp8 *fp8 = pass->options.fp8;
    size_t bytes = 0;
    head_memory memory;
    carry_arena count = carry_arena_over(NULL, 0);
    if (fp8 == NULL || (fp8->forward >> CARRY_LM_FP8_HEAD & 1) == 0) {
        return 0;
    }
    take(&memory, &count, pass, pass->lm->config.vocab_size, pass->lm->config.hidden_size);
    return carry_arena_total(&count, &bytes) ? bytes : SIZE_MAX;
}

/* Logits, losses and gradients of `count` tokens from `first` on. */
static carry_status run_block(carry_lm_pass *pass, const carry_linear_cross_entropy_args *head, const head_memory *m,
                              int64_t first, int64_t count, bool dx) {
    const int64_t number = pass->lm->config.num_hidden_layers * CARRY_LM_FP8_HEAD;
    const int64_t words = head->W.shape[0];
    const int64_t hidden = head->W.shape[1];
    const int64_t shape[] = {count, words};
    const carry_tensor x = carry_slice(head->x, first, count);
    const carry_fp8 a = carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_X, m->x, count, hidden);
    const carry_fp8 b = carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_W, m->weight, words, hidden);
    const carry_fp8 turned = carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_W, m->turned, hidden, words);
    const carry_fp8 codes =
        dx ? carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_DY, m->dlogits, count, words) : (carry_fp8){0};
    const carry_tensor logits = carry_view_on(x.device, m->logits, CARRY_F16, 2, shape);
    const carry_tensor gradients = carry_view_on(x.device, m->logits, CARRY_BF16, 2, shape);
    const carry_tensor absent = {0};
    CARRY_TRY(carry_lm_fp8_round(pass, a, x));
    CARRY_TRY(carry_fp8_product(pass->ctx, logits, a, b, absent));
    CARRY_TRY(carry_fp8_loss(pass->ctx, carry_slice(head->losses, first, count), logits,
                             carry_slice(head->targets, first, count), codes, head->scale));
    const carry_tensor to = carry_slice(head->dx, first, count);
    CARRY_TRY(dx ? carry_fp8_product(pass->ctx, to, codes, turned, absent) : CARRY_OK);
    return carry_linear_backward(pass->ctx, dx ? absent : to, head->dW, gradients, x, head->W, false);
}

carry_status carry_lm_fp8_head(carry_lm_pass *pass, const carry_lm_args *args,
                               const carry_linear_cross_entropy_args *head, bool *done) {
    const int64_t number = pass->lm->config.num_hidden_layers * CARRY_LM_FP8_HEAD;
    const int64_t words = head->W.shape[0];
    const int64_t hidden = head->W.shape[1];
    const int64_t tokens = head->x.shape[0];
    const bool dx = carry_lm_fp8_uses(pass, args, CARRY_LM_FP8_HEAD, true);
    *done = carry_lm_fp8_uses(pass, args, CARRY_LM_FP8_HEAD, false) && head->x.dtype == CARRY_BF16 &&
            head->W.dtype == CARRY_BF16 && words <= CARRY_FP8_WORDS && carry_fp8_fits(words, hidden) &&
            tokens % 16 == 0 && pass->scratch_bytes >= carry_lm_fp8_head_bytes(pass);
    if (!*done) {
        return CARRY_OK;
    }
    pass->fp8.forward |= 1u << CARRY_LM_FP8_HEAD;
    pass->fp8.dx |= dx ? 1u << CARRY_LM_FP8_HEAD : 0;
    head_memory m;
    carry_arena arena = carry_arena_over(pass->scratch, pass->scratch_bytes);
    take(&m, &arena, pass, words, hidden);
    CARRY_TRY(
        carry_lm_fp8_round(pass, carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_W, m.weight, words, hidden), head->W));
    if (dx) {
        CARRY_TRY(carry_lm_fp8_turn(pass, carry_lm_fp8_matrix(pass, number, CARRY_LM_FP8_W, m.turned, hidden, words),
                                    head->W, true));
    }
    for (int64_t first = 0; first < tokens; first += m.block) {
        CARRY_TRY(run_block(pass, head, &m, first, tokens - first < m.block ? tokens - first : m.block, dx));
    }
    return CARRY_OK;
}
