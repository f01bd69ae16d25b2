/* A language model from its folder: token numbers in, token numbers out as they come.

   cc 03_model.c $(pkg-config --cflags --libs carry) -o model && ./model FOLDER 1 2 3 */
#include <stdio.h>
#include <stdlib.h>

#include <carry/carry.h>

enum { MOST = 4096 };

static bool print_token(void *user, int64_t token) {
    (void)user;
    (void)printf("%lld ", (long long)token);
    return fflush(stdout) == 0;
}

static carry_status run(carry_ctx *ctx, const char *folder, const int64_t *prompt, int64_t count) {
    carry_llm *model;
    carry_llm_state *state;
    carry_status status = carry_llm_open(ctx, &model, folder, NULL);
    if (status != CARRY_OK) {
        return status;
    }
    status = carry_llm_state_new(model, &state);
    if (status == CARRY_OK) {
        const carry_llm_generation options = {/* temperature 0: the likeliest token */
                                              CARRY_INIT(carry_llm_generation), .tokens = 32, .on_token = print_token};
        status = carry_llm_generate(state, prompt, count, &options);
        (void)printf("\n%lld tokens were read\n", (long long)carry_llm_state_length(state));
        carry_llm_state_free(state);
    }
    carry_llm_close(model);
    return status;
}

int main(int count, char **argument) {
    static int64_t prompt[MOST];
    carry_ctx *ctx;
    if (count < 3 || count - 2 > MOST) {
        (void)printf("usage: model FOLDER TOKEN...\n");
        return count == 1 ? 0 : 2;
    }
    for (int i = 2; i < count; i++) {
        prompt[i - 2] = strtoll(argument[i], NULL, 10);
    }
    carry_status status = carry_ctx_new(&ctx, NULL);
    status = status == CARRY_OK ? run(ctx, argument[1], prompt, count - 2) : status;
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "%s\n", carry_ctx_error(ctx));
    }
    carry_ctx_free(ctx);
    return status == CARRY_OK ? 0 : 1;
}
