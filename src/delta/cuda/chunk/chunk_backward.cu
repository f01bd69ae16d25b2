/* Backward: prepare again, the states that enter every chunk, the states' gradients from the last chunk to the first,
   then the gradients of every chunk on its own. Nothing is kept from forward.

   So that the workspace stays below one and a half times the inputs: where half of the heads fill the GPU, they are done
   first and then the others, in the same workspace; else segments are, some of them at a time, or the walks go by parts
   (ring, chunk_device.cuh). Where that is not enough (packed sequences that are short), a few heads at a time. */
#include "delta/cuda/chunk/chunk_gradient_args.cuh"
#include "delta/cuda/chunk/chunk_host.cuh"

using namespace DELTA_CHUNK;

namespace {

struct layout {
    size_t states, values, dstates, between, partial, pairs, bytes;
};

/* The workspace is to be at most 1.5 times q, k, v and do, if it is large at all (LARGE bytes); rooms are counted with
   a little less. */
constexpr double MOST = 1.495, LARGE = 32e6;
constexpr int LEAST = 8; /* chunks of a ring's part */

shape segmented(const carry_delta_chunk_job *job, int units) {
    shape s = shape_of(job);
    set_segments(job, segments_of(job, units, true), &s);
    return s;
}

double walks_of(const carry_delta_chunk_job *job, const shape &s) {
    return (double)(job->sequences * s.segments * walked_heads(job));
}

double inputs_of(const carry_delta_chunk_job *job) {
    return (double)(job->batch * job->tokens) * 4.0 *
           (double)(job->heads * job->key + job->value_heads * job->value);
}

/* What the walks keep of one chunk of a value head that is walked. */
size_t state_bytes_of(const carry_delta_chunk_job *job) {
    return (size_t)(job->key / 64 * (part_size(job) / 64)) * BAND;
}
size_t value_bytes_of(const carry_delta_chunk_job *job) {
    return (size_t)(part_size(job) / 64) * BAND;
}
double room_bytes(const carry_delta_chunk_job *job) {
    return (double)(2 * state_bytes_of(job) + value_bytes_of(job));
}

/* How many chunks of value heads there is room for, of both walks. */
double rooms_of(const carry_delta_chunk_job *job, int units) {
    double tiles = (double)(slots_of(job) * job->value_heads);
    if (job->split > 0) { /* others wait for it: all at once */
        return tiles * (1 << shift_of(job));
    }
    double rounds = job->state_heads > 0 ? (double)(job->state_heads / job->value_heads) : 1.0;
    double others = tiles * (CHUNK_BYTES + 8) + (double)pair_bytes(job, units, true);
    double most = MOST * inputs_of(job) * rounds;
    return ((most > LARGE ? most : LARGE) - others) / room_bytes(job);
}

bool all_fit(const carry_delta_chunk_job *job, double rooms) {
    return rooms >= (double)(slots_of(job) * walked_heads(job));
}

/* How many segments of a sequence there is room for, so that rounds of them are as long; 0: none. */
int segments_at_once(const carry_delta_chunk_job *job, const shape &s, double rooms) {
    int most = (int)(rooms / ((double)(job->sequences * walked_heads(job)) * (double)s.segment_chunks));
    int rounds = most > 0 ? (s.segments + most - 1) / most : 0;
    return rounds > 0 && rounds <= 3 ? (s.segments + rounds - 1) / rounds : 0;
}

/* each = count = 0: all of it has room. */
ring ring_of(const carry_delta_chunk_job *job, const shape &s, int units) {
    ring r = {};
    double rooms = rooms_of(job, units);
    if (job->cu_seqlens != NULL || all_fit(job, rooms) || s.segment_chunks < 2 * LEAST) {
        return r;
    }
    r.count = s.segments > 1 ? segments_at_once(job, s, rooms) : 0;
    if (r.count > 0) {
        r.rooms[0] = r.rooms[1] = s.segment_chunks;
        return r;
    }
    rooms = rooms / walks_of(job, s) - 2.0 * D * D * sizeof(float) / room_bytes(job);
    r.half = (s.segment_chunks + 1) / 2;
    int most = rooms - r.half > LEAST ? (int)(rooms - r.half) : LEAST, parts = (r.half + most - 1) / most;
    r.each = (r.half + parts - 1) / parts;
    r.rooms[0] = r.half + r.each;
    r.rooms[1] = s.segment_chunks - r.half + r.each;
    return r;
}

carry_delta_view part_of(carry_delta_view view, int64_t first) {
    if (view.data != NULL) {
        view.data = (const char *)view.data + first * view.head * (view.dtype == 0 ? 4 : 2);
    }
    return view;
}

float *part_of(const float *floats, int64_t first) {
    return floats != NULL ? (float *)(uintptr_t)floats + first : NULL;
}

/* One of `rounds` parts of the heads. */
carry_delta_chunk_job round_of(const carry_delta_chunk_job &job, int rounds, int round) {
    carry_delta_chunk_job part = job;
    part.heads = job.heads / rounds;
    part.value_heads = job.value_heads / rounds;
    part.state_heads = job.value_heads;
    int64_t head = part.heads * round, value_head = part.value_heads * round;
    part.q = part_of(job.q, head);
    part.k = part_of(job.k, head);
    part.v = part_of(job.v, value_head);
    part.beta = part_of(job.beta, value_head);
    part.g = part_of(job.g, value_head);
    part.A_log = part_of(job.A_log, value_head);
    part.dt_bias = part_of(job.dt_bias, value_head);
    part.initial_state = part_of(job.initial_state, value_head * job.key * job.value);
    return part;
}

carry_delta_chunk_back round_of(const carry_delta_chunk_back &b, int rounds, int round) {
    carry_delta_chunk_back part = b;
    part.job = round_of(b.job, rounds, round);
    int64_t head = part.job.heads * round, value_head = part.job.value_heads * round;
    part.grad_o = part_of(b.grad_o, value_head);
    part.dq = part_of(b.dq, head);
    part.dk = part_of(b.dk, head);
    part.dv = part_of(b.dv, value_head);
    part.dbeta = part_of(b.dbeta, value_head);
    part.dg = part_of(b.dg, value_head);
    part.dfinal_state = part_of(b.dfinal_state, value_head * b.job.key * b.job.value);
    part.dinitial_state = part_of(b.dinitial_state, value_head * b.job.key * b.job.value);
    part.dA_log = part_of(b.dA_log, value_head);
    part.ddt_bias = part_of(b.ddt_bias, value_head);
    return part;
}

/* Of one round. */
layout layout_of(const carry_delta_chunk_job *job, int units) {
    shape s = segmented(job, units);
    ring r = ring_of(job, s, units);
    size_t tiles = (size_t)(slots_of(job) * job->value_heads), kept = tiles << s.shift, back = kept;
    size_t walks = (size_t)(job->sequences * s.segments * walked_heads(job));
    if (r.each > 0 || r.count > 0) {
        size_t lanes = r.count > 0 ? walks / (size_t)s.segments * (size_t)r.count : walks;
        kept = lanes * (size_t)r.rooms[0];
        back = lanes * (size_t)r.rooms[1];
    }
    layout l;
    l.states = tiles * CHUNK_BYTES;
    l.values = l.states + kept * state_bytes_of(job);
    l.dstates = l.values + kept * value_bytes_of(job);
    l.between = l.dstates + back * state_bytes_of(job);
    l.partial = l.between + (r.each > 0 ? 2 * walks * D * D * sizeof(float) : 0);
    l.pairs = l.partial + (tiles * 2 * sizeof(float) + 15) / 16 * 16;
    l.bytes = l.pairs + pair_bytes(job, units, true);
    return l;
}

/* The heads in so many rounds, as few as have room: two at least where half of them fill the GPU and all of them have no
   room without a ring. */
int rounds_of(const carry_delta_chunk_job *job, int units) {
    double most = 1.5 * inputs_of(job);
    bool many = part_size(job) / 64 * job->sequences * walked_heads(job) * 20 >= (int64_t)units * 19;
    int64_t rounds = many && !all_fit(job, rooms_of(job, units)) && job->heads % 2 == 0 ? 2 : 1;
    for (; rounds < job->heads; rounds++) {
        if (job->heads % rounds == 0) {
            carry_delta_chunk_job part = round_of(*job, (int)rounds, 0);
            if ((double)layout_of(&part, units).bytes <= (most > LARGE ? most : LARGE)) {
                break;
            }
        }
    }
    return (int)rounds;
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
}

/* Both walks, then the gradients; of a ring part by part. What enters segments is known. */
carry_status walk(carry_ctx *ctx, const carry_delta_chunk_back *b, scan_launch &both, gradient_args &last, int units,
                  int ordinal, cudaStream_t stream) {
    const carry_delta_chunk_job *job = &b->job;
    const shape &s = both.first.s;
    ring r = ring_of(job, s, units);
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
carry_status describe_back(carry_ctx *ctx, const carry_delta_chunk_back *b, encoder encode, scan_launch &both,
                           gradient_args &last, int units, int ordinal) {
    const carry_delta_chunk_job *job = &b->job;
    layout l = layout_of(job, units);
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
    a.s = last.in.s = segmented(job, units);
    a.tiles = memory;
    a.state_transposed = job->state_transposed;
    a.initial_state = job->initial_state;
    a.states = memory + l.states;
    a.values = memory + l.values;
    a.pairs = (float *)(memory + l.pairs);
    a.between = (float *)(memory + l.between);
    back = a;
    back.between += (size_t)(job->sequences * a.s.segments * walked_heads(job)) * D * D;
    CARRY_TRY(map_values(ctx, encode, &back.v, "do", &b->grad_o, job, 1, ordinal));
    CARRY_TRY(map_values(ctx, encode, &back.o, "dv", &b->dv, job, 1, ordinal));
    back.out = parts_of(&b->dv, job);
    back.initial_state = b->dfinal_state;
    back.final_state = b->dinitial_state;
    back.states = memory + l.dstates;
    set_gradients(&last, b, l);
    return CARRY_OK;
}

carry_status run(carry_ctx *ctx, const carry_delta_chunk_back *b, encoder encode, int units, int ordinal,
                 cudaStream_t stream) {
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(describe_back(ctx, b, encode, both, last, units, ordinal));
    CARRY_TRY(launch_prepare(ctx, &b->job, last.in, ordinal, stream));
    if (both.first.s.segments > 1) {
        CARRY_TRY(make_pairs<true>(ctx, &b->job, both, ordinal, stream));
    }
    return walk(ctx, b, both, last, units, ordinal, stream);
}

carry_status begin_back(carry_ctx *ctx, const carry_delta_chunk_back *b, encoder *encode, int *units, int ordinal) {
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    CARRY_TRY(check(ctx, b, ordinal));
    return find_encoder(ctx, encode, ordinal);
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
    carry_delta_chunk_job part = job->split > 0 ? *job : round_of(*job, rounds_of(job, units), 0);
    return layout_of(&part, units).bytes;
}
#endif

extern "C" carry_status BACKWARD_NAME(carry_ctx *ctx, const carry_delta_chunk_back *b, int ordinal, void *on) {
    int units = 0;
    encoder encode = NULL;
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    int rounds = rounds_of(&b->job, units);
    for (int round = 0; round < rounds; round++) {
        carry_delta_chunk_back part = round_of(*b, rounds, round);
        CARRY_TRY(run(ctx, &part, encode, units, ordinal, (cudaStream_t)on));
    }
    return CARRY_OK;
}

extern "C" carry_status PAIR_NAME(carry_ctx *ctx, const carry_delta_chunk_back *b, float *L, int ordinal, void *on) {
    int units = 0;
    encoder encode = NULL;
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    CARRY_TRY(describe_back(ctx, b, encode, both, last, units, ordinal));
    CARRY_TRY(launch_prepare(ctx, &b->job, last.in, ordinal, (cudaStream_t)on));
    return join_pairs<true>(ctx, &b->job, both, L, NULL, ordinal, (cudaStream_t)on);
}

extern "C" carry_status REST_NAME(carry_ctx *ctx, const carry_delta_chunk_back *b, const float *arrived, int ordinal,
                                  void *on) {
    int units = 0;
    encoder encode = NULL;
    scan_launch both = {};
    gradient_args last = {};
    CARRY_TRY(begin_back(ctx, b, &encode, &units, ordinal));
    CARRY_TRY(describe_back(ctx, b, encode, both, last, units, ordinal));
    const shape &s = both.first.s;
    both.second.initial_state = arrived != NULL ? arrived : b->dfinal_state;
    if (s.segments > 1) {
        arrived_states late = {arrived, true, s.state_heads, 64 * s.bands};
        CARRY_TRY(enter_segments<true>(ctx, &b->job, both, late, ordinal, (cudaStream_t)on));
    }
    return walk(ctx, b, both, last, units, ordinal, (cudaStream_t)on);
}
