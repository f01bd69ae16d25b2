/* Determines which sequences, and which parts of them, belong to this rank. */
#include <string.h>

#include "core/context.h"
#include "core/error.h"
#include "delta/ranks.h"

int64_t carry_delta_ranks_layout(const carry_delta_ranks_plan *plan, const int64_t *borders,
                                 carry_delta_sequence *table) {
    const carry_delta_problem *p = &plan->problem;
    int64_t count = 0;
    int64_t chunks = 0;
    int64_t last = plan->first + p->tokens;
    for (int64_t i = 0; p->tokens > 0 && i < (p->sequences > 0 ? p->sequences : p->batch); i++) {
        carry_delta_sequence part = {.batch = i,
                                     .length = p->tokens,
                                     .index = i,
                                     .chain = i,
                                     .enters = !plan->is_first,
                                     .leaves = !plan->is_last};
        if (p->sequences > 0) {
            bool enters = borders[i] < plan->first;
            bool leaves = borders[i + 1] > last;
            int64_t start = enters ? plan->first : borders[i];
            int64_t end = leaves ? last : borders[i + 1];
            part = (carry_delta_sequence){
                .start = start - plan->first, .length = end - start, .index = i, .enters = enters, .leaves = leaves};
        }
        if (part.length > 0) {
            part.chunk_start = chunks;
            chunks += (part.length + plan->inner->chunk - 1) / plan->inner->chunk;
            table[count++] = part;
        }
    }
    return count;
}

/* True if token t belongs to this rank. The position past the last token belongs to the last rank that has tokens. */
static bool has_token(const carry_delta_ranks_plan *plan, int64_t t) {
    if (plan->total == 0) {
        return carry_comm_rank(plan->comm) == 0;
    }
    return (t >= plan->first && t < plan->first + plan->problem.tokens) || (t == plan->total && plan->is_last);
}

carry_status carry_delta_ranks_empty(const carry_delta_ranks_plan *plan, const int64_t *borders, const carry_tensor *to,
                                     const carry_tensor *from) {
    const carry_delta_problem *p = &plan->problem;
    size_t floats = (size_t)(p->value_heads * p->key * p->value);
    for (int64_t i = 0; to != NULL && i < (p->sequences > 0 ? p->sequences : p->batch); i++) {
        bool is_empty = p->sequences > 0 ? borders[i] == borders[i + 1] : plan->total == 0;
        if (!is_empty || !has_token(plan, p->sequences > 0 ? borders[i] : 0)) {
            continue;
        }
        float *state = (float *)to->data + (size_t)i * floats;
        const float *given = from != NULL ? (const float *)from->data + (size_t)i * floats : NULL;
        carry_stream *stream = carry_ctx_stream(plan->ctx, p->device);
        if (given != NULL && given != state) {
            CARRY_TRY(carry_device_copy(plan->ctx, state, p->device, given, p->device, floats * sizeof *state, stream));
        } else if (given == NULL) {
            CARRY_TRY(carry_device_fill(plan->ctx, state, p->device, 0, floats * sizeof *state, stream));
        }
    }
    return CARRY_OK;
}

/* The FNV-1a hash of the borders' bytes. */
static uint64_t sum_of(const int64_t *borders, int64_t count) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < count; i++) {
        for (int byte = 0; byte < 64; byte += 8) {
            sum = (sum ^ ((uint64_t)borders[i] >> byte & 0xffu)) * 0x100000001b3u;
        }
    }
    return sum;
}

/* Each rank compares its borders with the previous rank only. A comparison among all would hold the first rank in every
   call until the last one has reached it. */
carry_status carry_delta_borders_begin(const carry_delta_ranks_plan *plan, const int64_t *borders, bool backward,
                                       carry_delta_borders_check *check) {
    *check = (carry_delta_borders_check){.is_open = borders != NULL};
    if (borders == NULL) {
        return CARRY_OK;
    }
    int rank = carry_comm_rank(plan->comm);
    int tag = plan->first_tag + CARRY_DELTA_RANKS_TAGS - (backward ? 1 : 2);
    check->mine = check->theirs = sum_of(borders, plan->problem.sequences + 1);
    if (rank > 0) {
        CARRY_TRY(carry_irecv(plan->host, &check->receive, &check->theirs, sizeof check->theirs, rank - 1, tag));
    }
    if (rank < carry_comm_size(plan->comm) - 1) {
        CARRY_TRY(carry_isend(plan->host, &check->send, &check->mine, sizeof check->mine, rank + 1, tag));
    }
    return CARRY_OK;
}

carry_status carry_delta_borders_end(const carry_delta_ranks_plan *plan, carry_delta_borders_check *check) {
    if (!check->is_open) {
        return CARRY_OK;
    }
    carry_status received = carry_wait(&check->receive);
    carry_status sent = carry_wait(&check->send);
    CARRY_TRY(received);
    CARRY_TRY(sent);
    if (check->mine != check->theirs) {
        int rank = carry_comm_rank(plan->comm);
        return carry_fail(plan->ctx, CARRY_EARGUMENT,
                          "cu_seqlens of rank %d is not that of rank %d: give every rank that of the whole row", rank,
                          rank - 1);
    }
    return CARRY_OK;
}
