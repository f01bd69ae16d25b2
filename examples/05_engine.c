/* Several texts at once from one model; prompts that begin alike are read once.

   cc 05_engine.c $(pkg-config --cflags --libs carry) -o engine && ./engine FOLDER 'Once upon a time' 'The delta rule'
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <carry/carry.h>

static void print_events(carry_engine *engine) {
    carry_engine_event event = {CARRY_INIT(carry_engine_event)};
    while (carry_engine_next(engine, &event)) {
        if (event.text_bytes > 0) {
            (void)printf("%" PRIu64 ": %.*s\n", event.request, (int)event.text_bytes, event.text);
        }
        if (event.reason != CARRY_REASON_NONE) {
            (void)printf("%" PRIu64 " ended: %s; %" PRId64 " of %" PRId64 " prompt tokens came from the cache %s\n",
                         event.request, carry_engine_reason_name(event.reason), event.cached_tokens,
                         event.prompt_tokens, event.message);
        }
    }
}

static carry_status run(carry_ctx *ctx, const char *folder, char **prompts, int count) {
    carry_engine *engine;
    bool is_busy = true;
    carry_status status = carry_engine_open(ctx, &engine, folder, NULL);
    for (int i = 0; i < count && status == CARRY_OK; i++) {
        const carry_engine_request request = {CARRY_INIT(carry_engine_request),
                                              .text = prompts[i],
                                              .text_bytes = strlen(prompts[i]),
                                              .tokens = 32,
                                              .temperature = 0.8,
                                              .seed = 1};
        uint64_t id;
        status = carry_engine_submit(ctx, engine, &request, &id);
    }
    while (status == CARRY_OK && is_busy) {
        status = carry_engine_step(engine, &is_busy);
        print_events(engine);
    }
    carry_engine_close(engine);
    return status;
}

int main(int count, char **argument) {
    carry_ctx *ctx;
    if (count < 3) {
        (void)printf("usage: engine FOLDER PROMPT...\n");
        return count == 1 ? 0 : 2;
    }
    carry_status status = carry_ctx_new(&ctx, NULL);
    status = status == CARRY_OK ? run(ctx, argument[1], argument + 2, count - 2) : status;
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "%s\n", carry_ctx_error(ctx));
    }
    carry_ctx_free(ctx);
    return status == CARRY_OK ? 0 : 1;
}
