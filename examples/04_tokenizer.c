/* Text to token ids and back, the second way token by token, as a program shows text that is generated.

   cc 04_tokenizer.c $(pkg-config --cflags --libs carry) -o tokenizer && ./tokenizer FOLDER "Once upon a time" */
#include <stdio.h>
#include <string.h>

#include <carry/carry.h>

enum { MOST = 4096 };

static carry_status show(carry_ctx *ctx, const carry_tokenizer *tokenizer, const char *text) {
    static int64_t ids[MOST];
    int64_t count;
    carry_decoder *decoder;
    const char *piece;
    carry_status status = carry_tokenizer_encode(ctx, tokenizer, ids, MOST, &count, text, strlen(text), NULL);
    if (status == CARRY_OK) {
        status = carry_decoder_new(ctx, &decoder, tokenizer, true);
    }
    if (status != CARRY_OK) {
        return status;
    }
    for (int64_t i = 0; i < count && i < MOST && status == CARRY_OK; i++) {
        status = carry_decoder_put(decoder, ids[i], &piece, NULL);
        (void)printf("%6lld '%s'\n", (long long)ids[i], status == CARRY_OK ? piece : "");
    }
    carry_decoder_free(decoder);
    (void)printf("%lld tokens of %lld\n", (long long)count, (long long)carry_tokenizer_size(tokenizer));
    return status;
}

int main(int count, char **argument) {
    carry_ctx *ctx;
    carry_tokenizer *tokenizer = NULL;
    if (count != 3) {
        (void)printf("usage: tokenizer FOLDER TEXT\n");
        return count == 1 ? 0 : 2;
    }
    carry_status status = carry_ctx_new(&ctx, NULL);
    status = status == CARRY_OK ? carry_tokenizer_open(ctx, &tokenizer, argument[1]) : status;
    status = status == CARRY_OK ? show(ctx, tokenizer, argument[2]) : status;
    if (status != CARRY_OK) {
        (void)fprintf(stderr, "%s\n", carry_ctx_error(ctx));
    }
    carry_tokenizer_close(tokenizer);
    carry_ctx_free(ctx);
    return status == CARRY_OK ? 0 : 1;
}
