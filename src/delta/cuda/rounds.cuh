/* How rounds.cu cuts a backward pass into rounds, and the layout of its workspace. */
#ifndef CARRY_DELTA_ROUNDS_CUH
#define CARRY_DELTA_ROUNDS_CUH

#include "delta/cuda/cuda.h"

namespace {

/* A plan and the launches of its method. */
struct planned {
    carry_delta_plan *plan;
    const carry_delta_walks *walks;
};

/* The size of a round (rounds.cu): the number of sequences, heads of q and k, tokens of a sequence (or of all packed
   sequences of the round), and tokens of a piece. */
struct cut {
    int64_t sequences, heads, tokens, piece;
    bool packed;
    bool again;          /* recompute the state that enters a piece from the first token on, instead of storing it */
    int64_t most_blocks; /* most blocks in a grid */

    int64_t pieces() const {
        return piece > 0 && tokens > piece ? (tokens + piece - 1) / piece : 1;
    }
};

/* The parts of a workspace; the same code computes its size and divides it. */
struct layout {
    int64_t *borders;
    float *part_q, *part_k, *part_beta, *part_g, *kept;
    float *starts, *between; /* starts: states that enter all pieces but the first; between: dS from a piece to the one
                                before it */
    float4 *stash;
};

carry_delta_job job_of(const planned &by, const cut &c) {
    carry_delta_job job = carry_delta_job_of(by.plan, NULL);
    job.sequences = c.sequences;
    job.heads = c.heads;
    job.value_heads = c.heads * by.plan->group;
    job.tokens = c.pieces() > 1 ? c.piece : c.tokens;
    return job;
}

/* The number of blocks of V. */
int64_t blocks_of(const planned &by, const carry_delta_job *job) {
    return by.walks->blocks != NULL ? by.walks->blocks(job, by.plan->gpu.units) : 1;
}

size_t states_of(const carry_delta_job &job) {
    return (size_t)(job.value_heads * job.key * job.value);
}

/* keep: the caller kept no states, so the workspace has space for them. */
layout take(const planned &by, const cut &c, bool keep, carry_arena *arena) {
    const carry_delta_job job = job_of(by, c);
    const int64_t tokens = c.packed ? job.tokens : job.sequences * job.tokens;
    const size_t rows = (size_t)(tokens * job.value_heads * blocks_of(by, &job));
    const size_t K = (size_t)job.key, states = (size_t)c.sequences * states_of(job);
    const size_t pieces = (size_t)c.pieces();
    layout l = {};
    l.borders = (int64_t *)carry_arena_take(arena, c.packed ? (size_t)c.sequences + 1 : 0, sizeof(int64_t));
    if (!by.walks->writes_rows || by.plan->group > 1) {
        l.part_q = (float *)carry_arena_take(arena, rows, K * sizeof(float));
        l.part_k = (float *)carry_arena_take(arena, rows, K * sizeof(float));
    }
    l.part_g = (float *)carry_arena_take(arena, rows, (job.by_key ? K : 1) * sizeof(float));
    l.part_beta = (float *)carry_arena_take(arena, rows, sizeof(float));
    const size_t stash = by.walks->stash != NULL ? by.walks->stash(&job, c.most_blocks, by.plan->gpu.units) : 0;
    l.stash = (float4 *)carry_arena_take(arena, stash, 1);
    if (keep) {
        const size_t slots = (size_t)(tokens / CARRY_DELTA_KEEP + c.sequences);
        l.kept = (float *)carry_arena_take(arena, slots, states_of(job) * sizeof(float));
        l.starts = (float *)carry_arena_take(arena, c.again && pieces > 1 ? 1 : pieces - 1, states * sizeof(float));
    }
    l.between = (float *)carry_arena_take(arena, pieces > 1 ? states : 0, sizeof(float));
    return l;
}

/* The bytes of workspace, or SIZE_MAX on overflow. */
size_t bytes_of(const planned &by, const cut &c, bool keep) {
    carry_arena arena = carry_arena_over(NULL, 0);
    size_t bytes = 0;
    (void)take(by, c, keep, &arena);
    return carry_arena_total(&arena, &bytes) ? bytes : SIZE_MAX;
}

/* Microseconds for the walks, plus 30 for the launches of each piece. */
double cost_of(const planned &by, const cut &c, int64_t sequences, bool keep) {
    const carry_delta_job job = job_of(by, c);
    int64_t resident = 2 * (int64_t)(by.plan->gpu.units > 0 ? by.plan->gpu.units : 1);
    resident = resident < c.most_blocks ? resident : c.most_blocks;
    const int64_t turns = (c.sequences * job.value_heads * blocks_of(by, &job) + resident - 1) / resident;
    const int64_t rounds =
        ((sequences + c.sequences - 1) / c.sequences) * ((by.plan->problem.heads + c.heads - 1) / c.heads);
    const double walks = c.pieces() == 1 ? 1.0 : c.again ? 1.0 + 0.5 * (double)c.pieces() : 2.0;
    const double each = by.walks->backward_cost + (keep ? walks * by.walks->forward_cost : 0.0);
    return (double)rounds * ((double)turns * (double)c.tokens * each + (double)c.pieces() * 30.0);
}

struct way {
    cut c;
    size_t bytes;
    double cost;
};

/* Replaces *best by c if that is better: the fastest that fits, else the smallest. */
void consider(const planned &by, way *best, const cut &c, int64_t sequences, bool keep, size_t most) {
    const way one = {c, bytes_of(by, c, keep), cost_of(by, c, sequences, keep)};
    const bool fits = one.bytes <= most;
    if (fits ? best->bytes > most || one.cost < best->cost : one.bytes < best->bytes) {
        *best = one;
    }
}

/* Considers pieces of 64, 128, 192, 256, 384, 512, ... tokens and of all tokens. The sizes are the same for every
   length, so that a sequence fits wherever a longer one fits. */
void consider_pieces(const planned &by, way *best, cut c, int64_t sequences, bool keep, size_t most) {
    for (int64_t two = CARRY_DELTA_KEEP; two < c.tokens && two <= INT64_MAX / 4; two *= 2) {
        for (int64_t piece = two; piece < 2 * two && piece < c.tokens; piece += two / 2) {
            if (piece % CARRY_DELTA_KEEP == 0) {
                c.piece = piece;
                consider(by, best, c, sequences, keep, most);
            }
        }
    }
    c.piece = c.tokens;
    consider(by, best, c, sequences, keep, most);
}

/* Chooses how unpacked sequences are divided so that they fit into `most` bytes. */
way way_of(const planned &by, int64_t sequences, int64_t tokens, bool keep, size_t most) {
    cut c = {sequences, by.plan->problem.heads, tokens, tokens, false, false, INT64_MAX};
    way best = {c, bytes_of(by, c, keep), cost_of(by, c, sequences, keep)};
    if (best.bytes <= most) {
        return best;
    }
    for (bool last = false; !last;) {
        last = c.sequences == 1 && c.heads == 1;
        consider_pieces(by, &best, c, sequences, keep, most);
        if (c.sequences > 1) {
            c.sequences = (c.sequences + 1) / 2;
        } else {
            c.heads = (c.heads + 1) / 2;
        }
    }
    c.again = keep; /* not even one head of one sequence fits: minimise memory at any cost */
    for (c.most_blocks = 64; best.bytes > most && c.most_blocks > 0; c.most_blocks /= 4) {
        consider_pieces(by, &best, c, sequences, keep, most);
    }
    return best;
}

} // namespace

#endif
