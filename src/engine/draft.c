/* Guesses by lookup in the text itself. */
#include "engine/draft.h"

#include <inttypes.h>
#include <string.h>

#include "core/error.h"

#define SHORTEST 2
#define LONGEST 8
#define LOOK_BACK 32768

/* The number of tokens before `end` that equal those before `count`, at most LONGEST. */
static int64_t same_before(const int32_t *ids, int64_t end, int64_t count) {
    int64_t n = 0;
    while (n < LONGEST && n < end && ids[end - 1 - n] == ids[count - 1 - n]) {
        n++;
    }
    return n;
}

int64_t carry_draft_ngram(void *user, const int32_t *ids, int64_t count, int32_t *to, int64_t most) {
    (void)user;
    int64_t best = 0;
    int64_t longest = SHORTEST - 1;
    const int64_t first = count > LOOK_BACK ? count - LOOK_BACK : 1;
    for (int64_t end = count - 1; end >= first && longest < LONGEST; end--) {
        const int64_t n = same_before(ids, end, count);
        if (n > longest) {
            longest = n;
            best = end;
        }
    }
    if (best == 0) {
        return 0;
    }
    for (int64_t i = 0; i < most; i++) { /* past the end of the text, the guesses repeat themselves */
        to[i] = best + i < count ? ids[best + i] : to[best + i - count];
    }
    return most;
}

carry_status carry_draft_choose(carry_ctx *ctx, carry_draft_plan *plan, const carry_engine_options *o, int64_t texts) {
    *plan = (carry_draft_plan){0};
    if (o->draft_tokens < 0 || o->draft_tokens > CARRY_DRAFT_MOST) {
        return carry_fail(ctx, CARRY_ERANGE, "draft_tokens is %" PRId64 ": expected 1 to %d, or 0 for the default",
                          o->draft_tokens, CARRY_DRAFT_MOST);
    }
    if (o->draft == NULL || strcmp(o->draft, "none") == 0) {
        return CARRY_OK;
    }
    plan->by_heads = strcmp(o->draft, "mtp") == 0;
    if (!plan->by_heads && strcmp(o->draft, "ngram") != 0) {
        return carry_fail(ctx, CARRY_EARGUMENT, "draft '%.60s': expected ngram, mtp or none", o->draft);
    }
    plan->function = plan->by_heads ? NULL : carry_draft_ngram;
    plan->tokens = o->draft_tokens > 0 ? o->draft_tokens : plan->by_heads ? CARRY_DRAFT_HEADS : CARRY_DRAFT_DEFAULT;
    plan->runs = plan->tokens * (texts < CARRY_DRAFT_TEXTS ? texts : CARRY_DRAFT_TEXTS);
    return CARRY_OK;
}
