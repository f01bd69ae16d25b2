/* Backward of "recurrent" and "tiles64", in rounds, so that its workspace stays below one and a half times q, k, v and
   do (or 32 MB, where that is more: plan->back_room).

   What it needs grows with the tokens under way: the sums that blocks of V make of dq, dk, dg and dbeta, and a state
   every 64 tokens. A round therefore has some of the sequences, or some heads of one, and goes through pieces of their
   tokens from the last to the first, with dS passed on between them. A piece starts from the state that enters it: a
   forward walk stores these states alone, and each piece walks its own tokens again (not where the caller kept all
   states). Packed sequences are done as many at a time as have room; one that has no room is done alone, as an unpacked
   one.

   Host code over the kernels of cuda.h and tiles_cuda.h. */
#include "delta/cuda/rounds.cuh"

#include "delta/cuda/tiles_cuda.h"

#include <string.h>

extern "C" {
#include "core/context.h"
}
#include "device/cuda.h"

namespace {

constexpr double MOST = 1.5, LARGE = 32e6;

double inputs_of(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return 2.0 * (double)(p->batch * p->tokens) * (double)carry_dtype_size(p->dtype) *
           ((double)(p->heads * p->key) + (double)(p->value_heads * p->value));
}

size_t most_of(const carry_delta_plan *plan) {
    double most = MOST * inputs_of(plan);
    most = most > LARGE ? most : LARGE;
    return carry_delta_test_room > 0 ? carry_delta_test_room : most < 9e18 ? (size_t)most : (size_t)9e18;
}

float *floats(const carry_tensor *tensor) {
    return tensor->data != NULL ? (float *)tensor->data : NULL;
}

carry_delta_back_job back_job_of(const carry_delta_plan *plan, const carry_delta_backward_args *args) {
    carry_delta_back_job back;
    memset(&back, 0, sizeof back);
    back.job = carry_delta_plain_job(plan);
    back.job.q = carry_delta_array_of(&args->q);
    back.job.k = carry_delta_array_of(&args->k);
    back.job.v = carry_delta_array_of(&args->v);
    back.job.beta = carry_delta_array_of(&args->beta);
    back.job.g = carry_delta_array_of(carry_delta_given(&args->g));
    back.job.A_log = floats(&args->A_log);
    back.job.dt_bias = floats(&args->dt_bias);
    back.job.initial = floats(&args->initial_state);
    back.job.kept = (float *)(uintptr_t)args->kept;
    back.grad_o = carry_delta_array_of(&args->d_o);
    back.dq = carry_delta_array_of(&args->dq);
    back.dk = carry_delta_array_of(&args->dk);
    back.dv = carry_delta_array_of(&args->dv);
    back.dbeta = carry_delta_array_of(&args->dbeta);
    back.dg = carry_delta_array_of(carry_delta_given(&args->dg));
    back.dfinal = floats(&args->dfinal_state);
    back.dinitial = floats(&args->dinitial_state);
    back.dA_log = floats(&args->dA_log);
    back.ddt_bias = floats(&args->ddt_bias);
    return back;
}

/* Where a round begins; head: of q and k. */
struct start {
    int64_t batch, token, sequence, head;
};

void move(carry_delta_array *array, int64_t batch, int64_t token, int64_t head) {
    if (array->data != NULL) {
        array->data = (char *)array->data + (batch * array->batch + token * array->token + head * array->head) *
                                                (int64_t)carry_dtype_size(array->dtype);
    }
}

float *after(const float *floats, int64_t count) {
    return floats != NULL ? (float *)(uintptr_t)floats + count : NULL;
}

/* Tokens of every tensor that has them. */
void move_tensors(carry_delta_back_job *part, int64_t batch, int64_t token, int64_t head) {
    carry_delta_job *job = &part->job;
    carry_delta_array *of_heads[] = {&job->q, &job->k, &part->dq, &part->dk};
    carry_delta_array *of_value_heads[] = {&job->v,   &job->beta,   &job->g, &part->grad_o,
                                           &part->dv, &part->dbeta, &part->dg};
    for (carry_delta_array *array : of_heads) {
        move(array, batch, token, head);
    }
    for (carry_delta_array *array : of_value_heads) {
        move(array, batch, token, head * job->group);
    }
}

/* What a round of `c` from `at` on has of `all`; l was made for `like`, which is c or has more heads or sequences. */
carry_delta_back_job part_of(const carry_delta_plan *plan, const carry_delta_back_job &all, const cut &c,
                             const cut &like, const start &at, const layout &l) {
    const int64_t first = at.head * plan->group, size = (int64_t)all.job.key * all.job.value;
    const int64_t state = (at.sequence * all.job.value_heads + first) * size;
    carry_delta_back_job part = all;
    carry_delta_job &job = part.job;
    move_tensors(&part, at.batch, at.token, at.head);
    job.sequences = c.sequences;
    job.heads = c.heads;
    job.value_heads = c.heads * plan->group;
    job.tokens = c.tokens;
    job.borders = c.packed ? l.borders : NULL;
    job.A_log = after(job.A_log, first);
    job.dt_bias = after(job.dt_bias, first);
    job.initial = after(job.initial, state);
    part.dfinal = after(part.dfinal, state);
    part.dinitial = after(part.dinitial, state);
    part.dA_log = after(part.dA_log, first);
    part.ddt_bias = after(part.ddt_bias, first);
    const carry_delta_job largest = job_of(plan, like);
    part.blocks = blocks_of(plan, &largest);
    part.lanes = largest.sequences * largest.value_heads;
    part.part_q = l.part_q;
    part.part_k = l.part_k;
    part.part_beta = l.part_beta;
    part.part_g = l.part_g;
    part.most_blocks = like.most_blocks;
    part.stash = l.stash;
    part.add_partials = at.sequence > 0;
    if (job.kept != NULL) {
        job.kept = after(job.kept, state);
        job.kept_token = at.batch * all.job.tokens + at.token;
    }
    return part;
}

/* A piece, whose `initial` and dS are set: its states again unless they were kept, then both kernels. */
carry_status run_piece(carry_delta_plan *plan, carry_delta_back_job part, float *kept, cudaStream_t stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    if (part.job.kept == NULL) {
        part.job.kept = kept;
        part.job.kept_tokens = part.job.tokens;
        part.job.kept_heads = part.job.value_heads;
        CARRY_TRY(carry_delta_plain_walk(plan, &part.job, stream));
    }
    CARRY_CUDA_TRY(carry_delta_by_tiles(plan) ? carry_delta_tiles_backward(&part, stream)
                                              : carry_delta_back_launch(&part, plan->gpu.units, stream),
                   "the delta rule's backward pass could not be started");
    CARRY_CUDA_TRY(carry_delta_gradients_launch(&part, stream), "gradients of the delta rule could not be summed");
    return CARRY_OK;
}

/* Piece `index` of a round. */
carry_delta_back_job piece_of(const carry_delta_back_job &round, const cut &c, const layout &l, int64_t index) {
    const int64_t first = index * c.piece;
    const size_t states = (size_t)c.sequences * states_of(round.job);
    carry_delta_back_job part = round;
    move_tensors(&part, 0, first, 0);
    part.job.tokens = c.tokens - first < c.piece ? c.tokens - first : c.piece;
    if (part.job.kept != NULL) {
        part.job.kept += first / CARRY_DELTA_KEEP * round.job.kept_heads * round.job.key * round.job.value;
    } else if (index > 0) {
        part.job.initial = l.starts + (c.again ? 0 : (size_t)(index - 1) * states);
    }
    return part;
}

carry_status run_round(carry_delta_plan *plan, const carry_delta_back_job &round, const cut &c, const layout &l,
                       cudaStream_t stream) {
    const int64_t pieces = c.pieces();
    const size_t states = (size_t)c.sequences * states_of(round.job);
    if (pieces == 1) {
        return run_piece(plan, round, l.kept, stream);
    }
    for (int64_t i = 0; i + 1 < pieces && round.job.kept == NULL && !c.again; i++) {
        carry_delta_job job = piece_of(round, c, l, i).job;
        job.final_state = l.starts + (size_t)i * states;
        CARRY_TRY(carry_delta_plain_walk(plan, &job, stream));
    }
    for (int64_t i = pieces - 1; i >= 0; i--) {
        carry_delta_back_job part = piece_of(round, c, l, i);
        if (c.again && i > 0 && round.job.kept == NULL) {
            carry_delta_job job = round.job;
            job.tokens = i * c.piece;
            job.final_state = l.starts;
            CARRY_TRY(carry_delta_plain_walk(plan, &job, stream));
        }
        part.dfinal = i + 1 < pieces ? l.between : round.dfinal;
        part.dinitial = i > 0 ? l.between : round.dinitial;
        part.add_partials = round.add_partials || i + 1 < pieces;
        CARRY_TRY(run_piece(plan, part, l.kept, stream));
    }
    return CARRY_OK;
}

/* Sequences that are not packed, from `from` on. */
carry_status run_way(carry_delta_plan *plan, const carry_delta_back_job &all, const way &how, int64_t sequences,
                     const start &from, bool keep, carry_arena arena, cudaStream_t stream) {
    const layout l = take(plan, how.c, keep, &arena);
    for (int64_t i = 0; i < sequences; i += how.c.sequences) {
        for (int64_t head = 0; head < plan->problem.heads; head += how.c.heads) {
            cut c = how.c;
            c.sequences = sequences - i < c.sequences ? sequences - i : c.sequences;
            c.heads = plan->problem.heads - head < c.heads ? plan->problem.heads - head : c.heads;
            const start at = {from.batch + i, from.token, from.sequence + i, head};
            CARRY_TRY(run_round(plan, part_of(plan, all, c, how.c, at, l), c, l, stream));
        }
    }
    return CARRY_OK;
}

/* Of packed sequences from `first` on, as many as have room, all of them or one at least. */
cut group_of(const carry_delta_plan *plan, const int64_t *cu, int64_t first, bool keep) {
    const int64_t last = plan->sequences;
    const int64_t all = cu[last] - cu[first];
    cut c = {last - first, plan->problem.heads, all, all, true, false, INT64_MAX};
    if (bytes_of(plan, c, keep) <= plan->back_room) {
        return c;
    }
    c.sequences = 1;
    c.tokens = c.piece = cu[first + 1] - cu[first];
    for (cut more = c; first + more.sequences < last && bytes_of(plan, more, keep) <= plan->back_room;) {
        c = more;
        more.tokens = more.piece = cu[first + ++more.sequences] - cu[first];
    }
    return c;
}

carry_status run_packed(carry_delta_plan *plan, const carry_delta_back_job &all, const int64_t *cu, bool keep,
                        const carry_arena &arena, cudaStream_t stream) {
    for (int64_t first = 0; first < plan->sequences;) {
        const cut c = group_of(plan, cu, first, keep);
        const start at = {0, cu[first], first, 0};
        carry_arena rest = arena;
        first += c.sequences;
        if (bytes_of(plan, c, keep) > plan->back_room) {
            way alone = way_of(plan, 1, c.tokens, keep, plan->back_room);
            CARRY_TRY(run_way(plan, all, alone, 1, at, keep, arena, stream));
            continue;
        }
        const layout l = take(plan, c, keep, &rest);
        CARRY_TRY(carry_delta_upload_some(plan, l.borders, cu + at.sequence, c.sequences + 1, stream));
        CARRY_TRY(run_round(plan, part_of(plan, all, c, c, at, l), c, l, stream));
    }
    return CARRY_OK;
}

} // namespace

bool carry_delta_rounds_workspace(carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    const cut whole = {plan->sequences, p->heads, p->tokens, p->tokens, true, false, INT64_MAX};
    size_t needed = 0;
    plan->back_room = most_of(plan);
    for (int keep = 0; keep < 2; keep++) {
        size_t bytes = p->sequences == 0 ? way_of(plan, p->batch, p->tokens, keep == 1, plan->back_room).bytes
                                         : bytes_of(plan, whole, keep == 1);
        if (p->sequences > 0 && bytes > plan->back_room) { /* a group may take all of it, one alone more */
            bytes = way_of(plan, 1, p->tokens, keep == 1, plan->back_room).bytes;
            bytes = bytes > plan->back_room ? bytes : plan->back_room;
        }
        needed = bytes > needed ? bytes : needed;
    }
    plan->back_room = p->sequences > 0 && needed > plan->back_room ? needed : plan->back_room;
    plan->backward_workspace = needed;
    return needed < SIZE_MAX;
}

carry_status carry_delta_rounds_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory,
                                         size_t bytes) {
    const carry_delta_problem *p = &plan->problem;
    const bool keep = args->kept == NULL;
    const carry_arena arena = carry_arena_over(memory, bytes);
    cudaStream_t stream;
    CARRY_TRY(carry_delta_plain_begin(plan, &stream));
    const carry_delta_back_job back = back_job_of(plan, args);
    if (p->sequences > 0) {
        CARRY_TRY(run_packed(plan, back, (const int64_t *)args->cu_seqlens.data, keep, arena, stream));
    } else {
        way how = way_of(plan, p->batch, p->tokens, keep, plan->back_room);
        CARRY_TRY(run_way(plan, back, how, p->batch, start{0, 0, 0, 0}, keep, arena, stream));
    }
    carry_delta_plain_told(plan, keep ? 35.0 : 28.0);
    return CARRY_OK;
}
