/* Prefill, then decode: the gated delta rule over a prompt in one call, then token by token on the state it left.

   cc 02_delta.c $(pkg-config --cflags --libs carry) -o delta && ./delta */
#include <stdio.h>
#include <stdlib.h>

#include <carry/carry.h>

enum { TOKENS = 100, MORE = 5, HEADS = 2, K = 32, V = 32 };

static float q[(TOKENS + MORE) * HEADS * K], k[(TOKENS + MORE) * HEADS * K], v[(TOKENS + MORE) * HEADS * V];
static float o[(TOKENS + MORE) * HEADS * V], g[(TOKENS + MORE) * HEADS], beta[(TOKENS + MORE) * HEADS];
static float state[HEADS * K * V];

/* What a call needs of tokens first..first+count-1. */
static carry_delta_forward_args tokens(int first, int count, carry_tensor *gate) {
    *gate = carry_view_3d(g + first * HEADS, CARRY_F32, 1, count, HEADS);
    return (carry_delta_forward_args){
        .o = carry_view_4d(o + first * HEADS * V, CARRY_F32, 1, count, HEADS, V),
        .q = carry_view_4d(q + first * HEADS * K, CARRY_F32, 1, count, HEADS, K),
        .k = carry_view_4d(k + first * HEADS * K, CARRY_F32, 1, count, HEADS, K),
        .v = carry_view_4d(v + first * HEADS * V, CARRY_F32, 1, count, HEADS, V),
        .beta = carry_view_3d(beta + first * HEADS, CARRY_F32, 1, count, HEADS),
        .g = *gate,
    };
}

static carry_status run(carry_ctx *ctx, int first, int count) {
    const carry_delta_problem problem = {.batch = 1,
                                         .tokens = count,
                                         .heads = HEADS,
                                         .value_heads = HEADS,
                                         .key = K,
                                         .value = V,
                                         .gate = CARRY_DELTA_HEAD_GATE,
                                         .l2norm = true};
    carry_delta_plan *plan;
    carry_tensor gate;
    carry_tensor states = carry_view_4d(state, CARRY_F32, 1, HEADS, K, V);
    carry_delta_forward_args args = tokens(first, count, &gate);
    args.initial_state = states;
    args.final_state = states; /* the state moves on in place */
    carry_status status = carry_delta_plan_new(ctx, &plan, &problem, NULL);
    if (status != CARRY_OK) {
        return status;
    }
    size_t bytes = carry_delta_forward_workspace(plan);
    void *workspace = malloc(bytes);
    status = count > 1 ? carry_delta_forward(plan, &args, workspace, bytes)
                       : carry_delta_step(plan, args.o, states, &args, workspace, bytes);
    free(workspace);
    carry_delta_plan_free(plan);
    return status;
}

int main(void) {
    carry_ctx *ctx;
    carry_status status = carry_ctx_new(&ctx, NULL);
    const int64_t all = TOKENS + MORE;
    if (status == CARRY_OK) {
        (void)carry_random_normal(ctx, carry_view_1d(q, CARRY_F32, all * HEADS * K), 1, 0, 0.0f, 1.0f);
        (void)carry_random_normal(ctx, carry_view_1d(k, CARRY_F32, all * HEADS * K), 1, 1, 0.0f, 1.0f);
        (void)carry_random_normal(ctx, carry_view_1d(v, CARRY_F32, all * HEADS * V), 1, 2, 0.0f, 1.0f);
        (void)carry_random_uniform(ctx, carry_view_1d(g, CARRY_F32, all * HEADS), 1, 3, -0.1f, 0.0f);
        (void)carry_random_uniform(ctx, carry_view_1d(beta, CARRY_F32, all * HEADS), 1, 4, 0.0f, 1.0f);
        status = run(ctx, 0, TOKENS);
    }
    for (int token = 0; status == CARRY_OK && token < MORE; token++) {
        status = run(ctx, TOKENS + token, 1);
    }
    if (status == CARRY_OK) {
        printf("the last token's output starts with %.4f\n", (double)o[(all - 1) * HEADS * V]);
    } else if (ctx != NULL) {
        fprintf(stderr, "%s\n", carry_ctx_error(ctx));
    }
    carry_ctx_free(ctx);
    return status == CARRY_OK ? 0 : 1;
}
