/* The backward pass. It runs prepare again unless the forward pass kept its tiles. Then two walks run at once: one
   stores the state that enters every chunk, the other, from the last chunk to the first, the gradients of the states.
   Last, the gradients of each chunk are computed. rounds.cuh describes how the pass is split into rounds. */
#include "delta/cuda/chunk/gradient_args.cuh"
#include "delta/cuda/chunk/rounds.cuh"

using namespace DELTA_CHUNK;

namespace {

carry_status check(carry_ctx *ctx, const carry_delta_back_job *b, int ordinal) {
    CARRY_TRY(check_view(ctx, "q", &b->job.q, ordinal));
    CARRY_TRY(check_view(ctx, "k", &b->job.k, ordinal));
    CARRY_TRY(check_values(ctx, "v", &b->job.v, &b->job, ordinal));
    CARRY_TRY(check_values(ctx, "do", &b->grad_o, &b->job, ordinal));
    CARRY_TRY(check_view(ctx, "dq", &b->dq, ordinal));
    CARRY_TRY(check_view(ctx, "dk", &b->dk, ordinal));
    return check_values(ctx, "dv", &b->dv, &b->job, ordinal);
}

/* Arguments of the last kernel, except its tensor maps. */
void set_gradients(gradient_args *last, const carry_delta_back_job *b, const layout &l) {
    const carry_delta_job *job = &b->job;
    char *memory = (char *)job->workspace;
    last->items = (int)(slots_of(job) * job->heads);
    last->v = parts_of(&job->v, job);
    last->dq = b->dq;
    last->dk = b->dk;
    last->dv = parts_of(&b->dv, job);
    last->dbeta = b->dbeta;
    last->dg = b->dg;
    last->states = memory + l.states;
    last->values = memory + l.values;
    last->dstates = memory + l.dstates;
    last->partial = job->gate_inside ? (float *)(memory + l.partial) : NULL;
    last->numbers = (float *)(memory + l.numbers);
    last->dots = (float *)(memory + l.dots);
    last->turns = job->key > D ? 2 : 1;
    last->kept_bytes = (int)state_bytes_of(job);
}

/* Runs both walks, then the gradients; with a ring, part by part. The states that enter segments must be known. */
carry_status walk(carry_ctx *ctx, const carry_delta_back_job *b, scan_launch &both, gradient_args &last, ring r,
                  int units, int ordinal, cudaStream_t stream) {
    const carry_delta_job *job = &b->job;
    const shape &s = both.first.s;
    for (int count = r.count; r.count > 0 && r.from < s.segments; r.from += count) {
        r.count = s.segments - r.from < count ? s.segments - r.from : count;
        both.first.r = both.second.r = last.r = r;
        last.items = (int)(job->sequences * r.count * s.segment_chunks * job->heads);
        CARRY_TRY((run_scan<KEEP, BACK>(ctx, job, both, units, ordinal, stream)));
        CARRY_TRY(launch_gradients(ctx, b, last, r.from + count >= s.segments, units, ordinal, stream));
    }
    int parts = r.each > 0 ? (r.half + r.each - 1) / r.each : 0;
    for (r.part = 0; r.count == 0 && r.part <= parts; r.part++) {
        both.first.r = both.second.r = last.r = r;
        CARRY_TRY((run_scan<KEEP, BACK>(ctx, job, both, units, ordinal, stream)));
        if (r.part > 0) {
            last.items = (int)(job->sequences * s.segments * 2 * r.each * job->heads);
        }
        if (r.part > 0 || parts == 0) {
            CARRY_TRY(launch_gradients(ctx, b, last, r.part == parts, units, ordinal, stream));
        }
    }
    return CARRY_OK;
}

/* Fills the arguments of all kernels. */
carry_status describe_back(carry_ctx *ctx, const carry_delta_back_job *b, const back_way &way, carry_map_encoder encode,
                           scan_launch &both, gradient_args &last, int ordinal) {
    const carry_delta_job *job = &b->job;
    const layout &l = way.l;
    char *memory = (char *)job->workspace;
    scan_args &a = both.first, &back = both.second;
    CARRY_TRY(map_keys(ctx, encode, &a.q, "q", &job->q, job, ordinal));
    CARRY_TRY(map_keys(ctx, encode, &a.k, "k", &job->k, job, ordinal));
    CARRY_TRY(map_values(ctx, encode, &a.v, "v", &job->v, job, 1, ordinal));
    CARRY_TRY(map_values(ctx, encode, &last.grad_o, "do", &b->grad_o, job, 2, ordinal));
    CARRY_TRY(map_keys(ctx, encode, &last.grad_q, "dq", &b->dq, job, ordinal));
    CARRY_TRY(map_keys(ctx, encode, &last.grad_k, "dk", &b->dk, job, ordinal));
    CARRY_TRY(map_values(ctx, encode, &last.grad_v, "dv", &b->dv, job, 2, ordinal));
    last.in = prepare_args_of(job, &a.q, &a.k);
    a.s = last.in.s = way.s;
    last.in.s.key_bands =
        a.s.key_bands > 2 ? 2 : a.s.key_bands; /* in one launch of `gradients`; prepare handles all keys at once */
    a.tiles = last.in.tiles = tiles_of(job);
    a.state_transposed = job->transposed;
    a.initial_state = job->initial;
    a.states = memory + l.states;
    a.values = memory + l.values;
    a.pairs = (float *)(memory + l.pairs);
    a.between = (float *)(memory + l.between);
    back = a;
    back.between += (size_t)(job->sequences * a.s.segments * walked_heads(job)) * between_floats(job);
    CARRY_TRY(map_values(ctx, encode, &back.v, "do", &b->grad_o, job, 1, ordinal));
    CARRY_TRY(map_values(ctx, encode, &back.o, "dv", &b->dv, job, 1, ordinal));
    back.out = parts_of(&b->dv, job);
    back.initial_state = b->dfinal;
    back.final_state = b->dinitial;
    back.states = memory + l.dstates;
    set_gradients(&last, b, l);
    return CARRY_OK;
}

carry_status prepare_again(carry_ctx *ctx, const carry_delta_back_job *b, const scan_launch &both,
                           const gradient_args &last, int units, int ordinal, cudaStream_t stream) {
    prepare_args in = last.in;
    in.s.key_bands = both.first.s.key_bands;
    return launch_prepare(ctx, &b->job, in, units, ordinal, stream);
}

carry_status run(carry_ctx *ctx, const carry_delta_back_job *b, const back_way &way, carry_map_encoder encode,
                 int units, int ordinal, cudaStream_t stream) {
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(describe_back(ctx, b, way, encode, both, last, ordinal));
    if (both.first.tiles == (const char *)b->job.workspace) {
        CARRY_TRY(prepare_again(ctx, b, both, last, units, ordinal, stream));
    }
    if (way.s.segments > 1) {
        CARRY_TRY(make_pairs<true>(ctx, &b->job, both, ordinal, stream));
    }
    return walk(ctx, b, both, last, way.r, units, ordinal, stream);
}

carry_status begin_back(carry_ctx *ctx, const carry_delta_back_job *b, carry_map_encoder *encode, int *units,
                        int ordinal) {
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    CARRY_TRY(check(ctx, b, ordinal));
    return carry_map_find_encoder(ctx, encode, ordinal);
}

/* Sets `part` to the packed sequences from `first` on that fit into one round. If the first one does not fit, sets
   `part` to that one alone. Returns the index of the sequence after them. */
int64_t some_sequences(carry_delta_job *part, const carry_delta_job &all, int64_t first, int64_t slots) {
    const int64_t *cu = all.host_borders;
    int64_t next = first + 1;
    if ((cu[next] - cu[first]) / C + 1 > slots) {
        *part = alone(part, cu[next] - cu[first]);
        return next;
    }
    while (next < all.sequences && (cu[next + 1] - cu[first]) / C + next + 1 - first <= slots) {
        next++;
    }
    part->borders = all.borders + first;
    part->first_token = cu[first];
    part->sequences = next - first;
    part->tokens = cu[next] - cu[first];
    return next;
}

/* Runs all sequences for one round of heads. */
carry_status run_sequences(carry_ctx *ctx, const carry_delta_back_job &b, const back_rounds &rounds, int round,
                           carry_map_encoder encode, int units, int ordinal, cudaStream_t stream) {
    const carry_delta_job &all = b.job;
    int64_t each = (all.batch + rounds.batches - 1) / rounds.batches;
    for (int64_t first = 0, next = 0; first < all.sequences; first = next) {
        carry_delta_back_job part = b;
        part.job = some_heads(&all, rounds.heads);
        int64_t batch = 0, token = 0;
        if (rounds.slots > 0) {
            next = some_sequences(&part.job, all, first, rounds.slots);
            token = all.host_borders[first];
        } else if (all.borders != NULL) {
            next = all.sequences;
        } else {
            next = first + each < all.batch ? first + each : all.batch;
            part.job.batch = part.job.sequences = next - first;
            batch = first;
        }
        part.job.state_heads = all.value_heads;
        part.add_partials = first > 0;
        carry_delta_back_job_move(&part, batch, token, part.job.heads * round, first);
        back_way way = way_of(&part.job, units, rounds.most, rounds.thorough);
        CARRY_TRY(run(ctx, &part, way, encode, units, ordinal, stream));
    }
    return CARRY_OK;
}

} // namespace

static size_t back_bytes(const carry_delta_job *job, int units) {
    return round_bytes(job, units, rounds_of(job, units));
}

/* A round of some heads or sequences numbers its tiles from 0, so only a pass in one round can use kept tiles. */
static size_t kept_bytes(const carry_delta_job *job, int units) {
    const back_rounds rounds = rounds_of(job, units);
    const bool once = rounds.heads == 1 && rounds.batches == 1 && rounds.slots == 0;
    return once ? (size_t)(slots_of(job) * job->value_heads) * CHUNK_BYTES : 0;
}

static carry_status run_backward(carry_ctx *ctx, const carry_delta_back_job *b, int ordinal, cudaStream_t stream) {
    int units = 0;
    carry_map_encoder encode = NULL;
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    back_rounds rounds = rounds_of(&b->job, units);
    for (int round = 0; round < rounds.heads; round++) {
        CARRY_TRY(run_sequences(ctx, *b, rounds, round, encode, units, ordinal, stream));
    }
    return CARRY_OK;
}

/* A pass in two calls is done in one round, and the walks keep the results of all chunks. */
static back_way split_way(const carry_delta_job *job, int units) {
    return way_of(job, units, most_of(job), false);
}

static carry_status run_back_pair(carry_ctx *ctx, const carry_delta_back_job *b, float *L, int ordinal,
                                  cudaStream_t stream) {
    int units = 0;
    carry_map_encoder encode = NULL;
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    CARRY_TRY(describe_back(ctx, b, split_way(&b->job, units), encode, both, last, ordinal));
    CARRY_TRY(prepare_again(ctx, b, both, last, units, ordinal, stream));
    return join_pairs<true>(ctx, &b->job, both, L, NULL, ordinal, stream);
}

static carry_status run_back_rest(carry_ctx *ctx, const carry_delta_back_job *b, const float *arrived, int ordinal,
                                  cudaStream_t stream) {
    int units = 0;
    carry_map_encoder encode = NULL;
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    back_way way = split_way(&b->job, units);
    CARRY_TRY(describe_back(ctx, b, way, encode, both, last, ordinal));
    both.second.initial_state = arrived != NULL ? arrived : b->dfinal;
    if (way.s.segments > 1) {
        arrived_states late = {arrived, true, way.s.state_heads, 64 * way.s.bands};
        CARRY_TRY(enter_segments<true>(ctx, &b->job, both, late, ordinal, stream));
    }
    return walk(ctx, b, both, last, way.r, units, ordinal, stream);
}

const carry_delta_chunk_kernels DELTA_CHUNK_KERNELS = {
    .works = works,
    .bytes = forward_bytes,
    .back_bytes = back_bytes,
    .kept_bytes = kept_bytes,
    .forward = run_forward,
    .keys_apply = keys_apply,
    .keys_bytes = keys_bytes,
    .keys = run_keys,
    .pair = run_pair,
    .rest = run_rest,
    .backward = run_backward,
    .back_pair = run_back_pair,
    .back_rest = run_back_rest,
};
