/* Forward and backward pass of methods that walk tokens in order (carry_delta_walks, cuda.h).

   Backward is done in rounds, so that its workspace stays below one and a half times q, k, v and do (or 32 MB, if
   that is more: plan->back_room). Its memory grows with the tokens of a round: sums over blocks of V for dq, dk, dg
   and dbeta, and a state every 64 tokens. A round therefore has some of the sequences, or some heads of one. It goes
   through pieces of their tokens from the last to the first and passes dS on between them. A piece starts from the
   state that enters it: unless the caller kept all states, a forward walk first stores these states (or, to need less
   memory, a walk from the first token computes each of them when its piece begins), and each piece then walks its own
   tokens again. Packed sequences are done together as far as they fit; one that does not fit is done alone, as an
   unpacked one. */
#include "delta/cuda/rounds.cuh"

#include "device/cuda.h"

namespace {

constexpr double MOST = 1.5, LARGE = 32e6;

double inputs_of(const planned &by) {
    const carry_delta_problem *p = &by.plan->problem;
    return 2.0 * (double)(p->batch * p->tokens) * (double)carry_dtype_size(p->dtype) *
           ((double)(p->heads * p->key) + (double)(p->value_heads * p->value));
}

size_t most_of(const planned &by) {
    double most = MOST * inputs_of(by);
    most = most > LARGE ? most : LARGE;
    return carry_delta_test_room > 0 ? carry_delta_test_room : most < 9e18 ? (size_t)most : (size_t)9e18;
}

/* The position where a round begins. head: of q and k. */
struct start {
    int64_t batch, token, sequence, head;
};

/* Returns the job of a round of size `c` that begins at `at`. The layout `l` was computed for a round of size `like`,
   which has at least as many heads and sequences as c. */
carry_delta_back_job part_of(const planned &by, const carry_delta_back_job &all, const cut &c, const cut &like,
                             const start &at, const layout &l) {
    carry_delta_back_job part = all;
    carry_delta_job &job = part.job;
    carry_delta_back_job_move(&part, at.batch, at.token, at.head, at.sequence);
    job.sequences = c.sequences;
    job.heads = c.heads;
    job.value_heads = c.heads * by.plan->group;
    job.tokens = c.tokens;
    job.borders = c.packed ? l.borders : NULL;
    job.kept_token = job.kept != NULL ? at.batch * all.job.tokens + at.token : 0;
    const carry_delta_job largest = job_of(by, like);
    part.blocks = blocks_of(by, &largest);
    part.lanes = largest.sequences * largest.value_heads;
    part.part_q = l.part_q;
    part.part_k = l.part_k;
    part.part_beta = l.part_beta;
    part.part_g = l.part_g;
    part.most_blocks = like.most_blocks;
    part.stash = l.stash;
    part.add_partials = at.sequence > 0;
    return part;
}

carry_status walk_forward(const planned &by, const carry_delta_job *job, cudaStream_t stream) {
    carry_ctx *ctx = by.plan->ctx;
    int ordinal = by.plan->ordinal;
    CARRY_CUDA_TRY(by.walks->forward(job, by.plan->gpu.units, stream), "the delta rule could not be started");
    return CARRY_OK;
}

/* Runs a piece whose `initial` and dS are set: computes its states again unless they were kept, then runs both
   kernels. */
carry_status run_piece(const planned &by, carry_delta_back_job part, float *kept, cudaStream_t stream) {
    carry_ctx *ctx = by.plan->ctx;
    int ordinal = by.plan->ordinal;
    if (part.job.kept == NULL) {
        part.job.kept = kept;
        part.job.kept_tokens = part.job.tokens;
        part.job.kept_heads = part.job.value_heads;
        CARRY_TRY(walk_forward(by, &part.job, stream));
    }
    CARRY_CUDA_TRY(by.walks->backward(&part, by.plan->gpu.units, stream),
                   "the delta rule's backward pass could not be started");
    CARRY_CUDA_TRY(carry_delta_gradients_launch(&part, stream), "gradients of the delta rule could not be summed");
    return CARRY_OK;
}

/* Returns the job of piece `index` of a round. */
carry_delta_back_job piece_of(const carry_delta_back_job &round, const cut &c, const layout &l, int64_t index) {
    const int64_t first = index * c.piece;
    const size_t states = (size_t)c.sequences * states_of(round.job);
    carry_delta_back_job part = round;
    carry_delta_back_job_move(&part, 0, first, 0, 0);
    part.job.tokens = c.tokens - first < c.piece ? c.tokens - first : c.piece;
    if (part.job.kept != NULL) {
        part.job.kept += first / CARRY_DELTA_KEEP * round.job.kept_heads * round.job.key * round.job.value;
    } else if (index > 0) {
        part.job.initial = l.starts + (c.again ? 0 : (size_t)(index - 1) * states);
    }
    return part;
}

carry_status run_round(const planned &by, const carry_delta_back_job &round, const cut &c, const layout &l,
                       cudaStream_t stream) {
    const int64_t pieces = c.pieces();
    const size_t states = (size_t)c.sequences * states_of(round.job);
    if (pieces == 1) {
        return run_piece(by, round, l.kept, stream);
    }
    for (int64_t i = 0; i + 1 < pieces && round.job.kept == NULL && !c.again; i++) {
        carry_delta_job job = piece_of(round, c, l, i).job;
        job.final_state = l.starts + (size_t)i * states;
        CARRY_TRY(walk_forward(by, &job, stream));
    }
    for (int64_t i = pieces - 1; i >= 0; i--) {
        carry_delta_back_job part = piece_of(round, c, l, i);
        if (c.again && i > 0 && round.job.kept == NULL) {
            carry_delta_job job = round.job;
            job.tokens = i * c.piece;
            job.final_state = l.starts;
            CARRY_TRY(walk_forward(by, &job, stream));
        }
        part.dfinal = i + 1 < pieces ? l.between : round.dfinal;
        part.dinitial = i > 0 ? l.between : round.dinitial;
        part.add_partials = round.add_partials || i + 1 < pieces;
        CARRY_TRY(run_piece(by, part, l.kept, stream));
    }
    return CARRY_OK;
}

/* Runs sequences that are not packed, from `from` on. */
carry_status run_way(const planned &by, const carry_delta_back_job &all, const way &how, int64_t sequences,
                     const start &from, bool keep, carry_arena arena, cudaStream_t stream) {
    const layout l = take(by, how.c, keep, &arena);
    for (int64_t i = 0; i < sequences; i += how.c.sequences) {
        for (int64_t head = 0; head < by.plan->problem.heads; head += how.c.heads) {
            cut c = how.c;
            c.sequences = sequences - i < c.sequences ? sequences - i : c.sequences;
            c.heads = by.plan->problem.heads - head < c.heads ? by.plan->problem.heads - head : c.heads;
            const start at = {from.batch + i, from.token, from.sequence + i, head};
            CARRY_TRY(run_round(by, part_of(by, all, c, how.c, at, l), c, l, stream));
        }
    }
    return CARRY_OK;
}

/* Returns the largest group of packed sequences from `first` on that fits: all of them, or at least one. */
cut group_of(const planned &by, const int64_t *cu, int64_t first, bool keep) {
    const int64_t last = by.plan->sequences;
    const int64_t all = cu[last] - cu[first];
    cut c = {last - first, by.plan->problem.heads, all, all, true, false, INT64_MAX};
    if (bytes_of(by, c, keep) <= by.plan->back_room) {
        return c;
    }
    c.sequences = 1;
    c.tokens = c.piece = cu[first + 1] - cu[first];
    for (cut more = c; first + more.sequences < last && bytes_of(by, more, keep) <= by.plan->back_room;) {
        c = more;
        more.tokens = more.piece = cu[first + ++more.sequences] - cu[first];
    }
    return c;
}

carry_status run_packed(const planned &by, const carry_delta_back_job &all, const int64_t *cu, bool keep,
                        const carry_arena &arena, cudaStream_t stream) {
    for (int64_t first = 0; first < by.plan->sequences;) {
        const cut c = group_of(by, cu, first, keep);
        const start at = {0, cu[first], first, 0};
        carry_arena rest = arena;
        first += c.sequences;
        if (bytes_of(by, c, keep) > by.plan->back_room) {
            way alone = way_of(by, 1, c.tokens, keep, by.plan->back_room);
            CARRY_TRY(run_way(by, all, alone, 1, at, keep, arena, stream));
            continue;
        }
        const layout l = take(by, c, keep, &rest);
        CARRY_TRY(carry_delta_upload_some(by.plan, l.borders, cu + at.sequence, c.sequences + 1, stream));
        CARRY_TRY(run_round(by, part_of(by, all, c, c, at, l), c, l, stream));
    }
    return CARRY_OK;
}

} // namespace

bool carry_delta_walks_workspace(carry_delta_plan *plan, const carry_delta_walks *walks) {
    const carry_delta_problem *p = &plan->problem;
    const planned by = {plan, walks};
    const cut whole = {plan->sequences, p->heads, p->tokens, p->tokens, true, false, INT64_MAX};
    carry_arena forward = carry_arena_over(NULL, 0);
    size_t needed = 0;
    (void)carry_delta_take_borders(plan, &forward);
    plan->kept = (size_t)carry_delta_kept_slots(plan) * (size_t)(p->value_heads * p->key * p->value) * sizeof(float);
    plan->range_workspace = 0;
    plan->back_room = most_of(by);
    for (int keep = 0; keep < 2; keep++) {
        size_t bytes = p->sequences == 0 ? way_of(by, p->batch, p->tokens, keep == 1, plan->back_room).bytes
                                         : bytes_of(by, whole, keep == 1);
        /* A group may use the whole limit, and one sequence alone may need more. */
        if (p->sequences > 0 && bytes > plan->back_room) {
            bytes = way_of(by, 1, p->tokens, keep == 1, plan->back_room).bytes;
            bytes = bytes > plan->back_room ? bytes : plan->back_room;
        }
        needed = bytes > needed ? bytes : needed;
    }
    plan->back_room = p->sequences > 0 && needed > plan->back_room ? needed : plan->back_room;
    plan->backward_workspace = needed;
    return carry_arena_total(&forward, &plan->forward_workspace) && needed < SIZE_MAX;
}

carry_status carry_delta_walks_forward(carry_delta_plan *plan, const carry_delta_walks *walks,
                                       const carry_delta_forward_args *args, void *memory, size_t bytes) {
    const carry_delta_inputs inputs = carry_delta_inputs_of(args);
    carry_arena arena = carry_arena_over(memory, bytes);
    int64_t *borders = carry_delta_take_borders(plan, &arena);
    carry_delta_job job = carry_delta_job_of(plan, &inputs);
    cudaStream_t stream;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    CARRY_TRY(carry_delta_upload_borders(plan, borders, inputs.cu_seqlens, stream));
    job.borders = inputs.cu_seqlens != NULL ? borders : NULL;
    job.o = carry_delta_array_of(&args->o);
    job.final_state = (float *)args->final_state.data;
    job.snapshots = (float *)args->snapshots.data;
    job.kept = (float *)args->kept;
    CARRY_TRY(walk_forward({plan, walks}, &job, stream));
    carry_delta_count_work(plan, 7.0);
    return CARRY_OK;
}

carry_status carry_delta_walks_backward(carry_delta_plan *plan, const carry_delta_walks *walks,
                                        const carry_delta_backward_args *args, void *memory, size_t bytes) {
    const carry_delta_problem *p = &plan->problem;
    const planned by = {plan, walks};
    const bool keep = args->kept == NULL;
    const carry_arena arena = carry_arena_over(memory, bytes);
    const carry_delta_back_job back = carry_delta_back_job_of(plan, args);
    cudaStream_t stream;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    if (p->sequences > 0) {
        CARRY_TRY(run_packed(by, back, (const int64_t *)args->cu_seqlens.data, keep, arena, stream));
    } else {
        way how = way_of(by, p->batch, p->tokens, keep, plan->back_room);
        CARRY_TRY(run_way(by, back, how, p->batch, start{0, 0, 0, 0}, keep, arena, stream));
    }
    carry_delta_count_work(plan, keep ? 35.0 : 28.0);
    return CARRY_OK;
}
