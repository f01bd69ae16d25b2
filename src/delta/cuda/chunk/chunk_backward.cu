/* Backward: prepare again, the states that enter every chunk, the states' gradients from the last chunk to the first,
   then the gradients of every chunk on its own. Nothing is kept from forward. The rounds are chunk_rounds.cuh's. */
#include "delta/cuda/chunk/chunk_gradient_args.cuh"
#include "delta/cuda/chunk/chunk_rounds.cuh"

using namespace DELTA_CHUNK;

namespace {

carry_delta_view part_of(carry_delta_view view, int64_t batch, int64_t token, int64_t head) {
    if (view.data != NULL) {
        int64_t first = batch * view.batch + token * view.token + head * view.head;
        view.data = (const char *)view.data + first * (view.dtype == 0 ? 4 : 2);
    }
    return view;
}

float *part_of(const float *floats, int64_t first) {
    return floats != NULL ? (float *)(uintptr_t)floats + first : NULL;
}

/* Where a round begins. */
struct round_start {
    int64_t batch, token, sequence, head, value_head;
};

/* What `part`, whose sizes are set, has of `b`. */
void set_round(carry_delta_chunk_back *part, const carry_delta_chunk_back &b, const round_start &at) {
    carry_delta_chunk_job &to = part->job;
    const carry_delta_chunk_job &from = b.job;
    to.state_heads = from.value_heads;
    int64_t state = (at.sequence * from.value_heads + at.value_head) * from.key * from.value;
    to.q = part_of(from.q, at.batch, at.token, at.head);
    to.k = part_of(from.k, at.batch, at.token, at.head);
    to.v = part_of(from.v, at.batch, at.token, at.value_head);
    to.beta = part_of(from.beta, at.batch, at.token, at.value_head);
    to.g = part_of(from.g, at.batch, at.token, at.value_head);
    to.A_log = part_of(from.A_log, at.value_head);
    to.dt_bias = part_of(from.dt_bias, at.value_head);
    to.initial_state = part_of(from.initial_state, state);
    part->grad_o = part_of(b.grad_o, at.batch, at.token, at.value_head);
    part->dq = part_of(b.dq, at.batch, at.token, at.head);
    part->dk = part_of(b.dk, at.batch, at.token, at.head);
    part->dv = part_of(b.dv, at.batch, at.token, at.value_head);
    part->dbeta = part_of(b.dbeta, at.batch, at.token, at.value_head);
    part->dg = part_of(b.dg, at.batch, at.token, at.value_head);
    part->dfinal_state = part_of(b.dfinal_state, state);
    part->dinitial_state = part_of(b.dinitial_state, state);
    part->dA_log = part_of(b.dA_log, at.value_head);
    part->ddt_bias = part_of(b.ddt_bias, at.value_head);
    part->add_partials = at.sequence > 0;
}

carry_status check(carry_ctx *ctx, const carry_delta_chunk_back *b, int ordinal) {
    CARRY_TRY(check_view(ctx, "q", &b->job.q, ordinal));
    CARRY_TRY(check_view(ctx, "k", &b->job.k, ordinal));
    CARRY_TRY(check_values(ctx, "v", &b->job.v, &b->job, ordinal));
    CARRY_TRY(check_values(ctx, "do", &b->grad_o, &b->job, ordinal));
    CARRY_TRY(check_view(ctx, "dq", &b->dq, ordinal));
    CARRY_TRY(check_view(ctx, "dk", &b->dk, ordinal));
    return check_values(ctx, "dv", &b->dv, &b->job, ordinal);
}

/* The last kernel's, but for where its tensors are described. */
void set_gradients(gradient_args *last, const carry_delta_chunk_back *b, const layout &l) {
    const carry_delta_chunk_job *job = &b->job;
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

/* Both walks, then the gradients; of a ring part by part. What enters segments is known. */
carry_status walk(carry_ctx *ctx, const carry_delta_chunk_back *b, scan_launch &both, gradient_args &last, ring r,
                  int units, int ordinal, cudaStream_t stream) {
    const carry_delta_chunk_job *job = &b->job;
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

/* All that the kernels are told. */
carry_status describe_back(carry_ctx *ctx, const carry_delta_chunk_back *b, const back_way &way,
                           carry_map_encoder encode, scan_launch &both, gradient_args &last, int ordinal) {
    const carry_delta_chunk_job *job = &b->job;
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
    last.in.s.key_bands = a.s.key_bands > 2 ? 2 : a.s.key_bands; /* of a launch of gradients; prepare takes all at once */
    a.tiles = memory;
    a.state_transposed = job->state_transposed;
    a.initial_state = job->initial_state;
    a.states = memory + l.states;
    a.values = memory + l.values;
    a.pairs = (float *)(memory + l.pairs);
    a.between = (float *)(memory + l.between);
    back = a;
    back.between += (size_t)(job->sequences * a.s.segments * walked_heads(job)) * between_floats(job);
    CARRY_TRY(map_values(ctx, encode, &back.v, "do", &b->grad_o, job, 1, ordinal));
    CARRY_TRY(map_values(ctx, encode, &back.o, "dv", &b->dv, job, 1, ordinal));
    back.out = parts_of(&b->dv, job);
    back.initial_state = b->dfinal_state;
    back.final_state = b->dinitial_state;
    back.states = memory + l.dstates;
    set_gradients(&last, b, l);
    return CARRY_OK;
}

carry_status prepare_again(carry_ctx *ctx, const carry_delta_chunk_back *b, const scan_launch &both,
                           const gradient_args &last, int ordinal, cudaStream_t stream) {
    prepare_args in = last.in;
    in.s.key_bands = both.first.s.key_bands;
    return launch_prepare(ctx, &b->job, in, ordinal, stream);
}

carry_status run(carry_ctx *ctx, const carry_delta_chunk_back *b, const back_way &way, carry_map_encoder encode,
                 int units, int ordinal, cudaStream_t stream) {
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(describe_back(ctx, b, way, encode, both, last, ordinal));
    CARRY_TRY(prepare_again(ctx, b, both, last, ordinal, stream));
    if (way.s.segments > 1) {
        CARRY_TRY(make_pairs<true>(ctx, &b->job, both, ordinal, stream));
    }
    return walk(ctx, b, both, last, way.r, units, ordinal, stream);
}

carry_status begin_back(carry_ctx *ctx, const carry_delta_chunk_back *b, carry_map_encoder *encode, int *units,
                        int ordinal) {
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    CARRY_TRY(check(ctx, b, ordinal));
    return carry_map_find_encoder(ctx, encode, ordinal);
}

/* Packed sequences from `first` on that a round has room for; what follows them is returned. A sequence that has none is
   taken alone. */
int64_t some_sequences(carry_delta_chunk_job *part, const carry_delta_chunk_job &all, int64_t first, int64_t slots) {
    const int64_t *cu = all.borders;
    int64_t next = first + 1;
    if ((cu[next] - cu[first]) / C + 1 > slots) {
        *part = alone(part, cu[next] - cu[first]);
        return next;
    }
    while (next < all.sequences && (cu[next + 1] - cu[first]) / C + next + 1 - first <= slots) {
        next++;
    }
    part->cu_seqlens = all.cu_seqlens + first;
    part->first_token = cu[first];
    part->sequences = next - first;
    part->tokens = cu[next] - cu[first];
    return next;
}

/* All sequences of one round of heads. */
carry_status run_sequences(carry_ctx *ctx, const carry_delta_chunk_back &b, const back_rounds &rounds, int round,
                           carry_map_encoder encode, int units, int ordinal, cudaStream_t stream) {
    const carry_delta_chunk_job &all = b.job;
    int64_t each = (all.batch + rounds.batches - 1) / rounds.batches;
    for (int64_t first = 0, next = 0; first < all.sequences; first = next) {
        carry_delta_chunk_back part = b;
        part.job = some_heads(&all, rounds.heads);
        round_start at = {0, 0, first, part.job.heads * round, part.job.value_heads * round};
        if (rounds.slots > 0) {
            next = some_sequences(&part.job, all, first, rounds.slots);
            at.token = all.borders[first];
        } else if (all.cu_seqlens != NULL) {
            next = all.sequences;
        } else {
            next = first + each < all.batch ? first + each : all.batch;
            part.job.batch = part.job.sequences = next - first;
            at.batch = first;
        }
        set_round(&part, b, at);
        back_way way = way_of(&part.job, units, rounds.most, rounds.thorough);
        CARRY_TRY(run(ctx, &part, way, encode, units, ordinal, stream));
    }
    return CARRY_OK;
}

} // namespace

#ifdef CARRY_DELTA_F16
#define BACKWARD_NAME carry_delta_chunk_backward_f16
#define PAIR_NAME carry_delta_chunk_back_pair_f16
#define REST_NAME carry_delta_chunk_back_rest_f16
#else
#define BACKWARD_NAME carry_delta_chunk_backward
#define PAIR_NAME carry_delta_chunk_back_pair
#define REST_NAME carry_delta_chunk_back_rest

extern "C" size_t carry_delta_chunk_back_bytes(const carry_delta_chunk_job *job, int units) {
    return round_bytes(job, units, rounds_of(job, units));
}
#endif

extern "C" carry_status BACKWARD_NAME(carry_ctx *ctx, const carry_delta_chunk_back *b, int ordinal, void *on) {
    int units = 0;
    carry_map_encoder encode = NULL;
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    back_rounds rounds = rounds_of(&b->job, units);
    for (int round = 0; round < rounds.heads; round++) {
        CARRY_TRY(run_sequences(ctx, *b, rounds, round, encode, units, ordinal, (cudaStream_t)on));
    }
    return CARRY_OK;
}

/* In two parts: in one round, with all that the walks keep. */
static back_way split_way(const carry_delta_chunk_job *job, int units) {
    return way_of(job, units, most_of(job), false);
}

extern "C" carry_status PAIR_NAME(carry_ctx *ctx, const carry_delta_chunk_back *b, float *L, int ordinal, void *on) {
    int units = 0;
    carry_map_encoder encode = NULL;
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    CARRY_TRY(describe_back(ctx, b, split_way(&b->job, units), encode, both, last, ordinal));
    CARRY_TRY(prepare_again(ctx, b, both, last, ordinal, (cudaStream_t)on));
    return join_pairs<true>(ctx, &b->job, both, L, NULL, ordinal, (cudaStream_t)on);
}

extern "C" carry_status REST_NAME(carry_ctx *ctx, const carry_delta_chunk_back *b, const float *arrived, int ordinal,
                                  void *on) {
    int units = 0;
    carry_map_encoder encode = NULL;
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    back_way way = split_way(&b->job, units);
    CARRY_TRY(describe_back(ctx, b, way, encode, both, last, ordinal));
    both.second.initial_state = arrived != NULL ? arrived : b->dfinal_state;
    if (way.s.segments > 1) {
        arrived_states late = {arrived, true, way.s.state_heads, 64 * way.s.bands};
        CARRY_TRY(enter_segments<true>(ctx, &b->job, both, late, ordinal, (cudaStream_t)on));
    }
    return walk(ctx, b, both, last, way.r, units, ordinal, (cudaStream_t)on);
}
