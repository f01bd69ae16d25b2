/* Backward: prepare again, the states that enter every chunk, the states' gradients from the last chunk to the first,
   then the gradients of every chunk on its own. Nothing is kept from forward. Where half of the heads fill the GPU, they
   are done first and then the others, in the same workspace. */
#include "delta/cuda/chunk_gradient_parts.cuh"
#include "delta/cuda/chunk_host.cuh"

using namespace delta_chunk;

namespace {

struct layout {
    size_t states, values, dstates, partial, pairs, bytes;
};

/* Two, unless the blocks of one (two bands, two walks) would leave multiprocessors without one. */
int rounds_of(const carry_delta_chunk_job *job, int units) {
    return job->heads % 2 == 0 && 2 * job->sequences * job->value_heads * 20 >= (int64_t)units * 19 ? 2 : 1;
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
    part.initial_state = part_of(job.initial_state, value_head * D * D);
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
    part.dfinal_state = part_of(b.dfinal_state, value_head * D * D);
    part.dinitial_state = part_of(b.dinitial_state, value_head * D * D);
    part.dA_log = part_of(b.dA_log, value_head);
    part.ddt_bias = part_of(b.ddt_bias, value_head);
    return part;
}

/* Of one round. */
layout layout_of(const carry_delta_chunk_job *job, int units) {
    size_t tiles = (size_t)(slots_of(job) * job->value_heads);
    layout l;
    l.states = tiles * CHUNK_BYTES;
    l.values = l.states + tiles * STATE_BYTES;
    l.dstates = l.values + tiles * TILE;
    l.partial = l.dstates + tiles * STATE_BYTES;
    l.pairs = l.partial + (tiles * 2 * sizeof(float) + 15) / 16 * 16;
    l.bytes = l.pairs + pair_bytes(job, units, true);
    return l;
}

carry_status check(carry_ctx *ctx, const carry_delta_chunk_back *b, int ordinal) {
    CARRY_TRY(check_view(ctx, "q", &b->job.q, ordinal));
    CARRY_TRY(check_view(ctx, "k", &b->job.k, ordinal));
    CARRY_TRY(check_view(ctx, "v", &b->job.v, ordinal));
    CARRY_TRY(check_view(ctx, "do", &b->grad_o, ordinal));
    CARRY_TRY(check_view(ctx, "dq", &b->dq, ordinal));
    CARRY_TRY(check_view(ctx, "dk", &b->dk, ordinal));
    return check_view(ctx, "dv", &b->dv, ordinal);
}

/* The last kernel's, but for where its tensors are described. */
void set_gradients(gradient_args *last, const carry_delta_chunk_back *b, const layout &l) {
    const carry_delta_chunk_job *job = &b->job;
    char *memory = (char *)job->workspace;
    last->items = (int)(slots_of(job) * job->heads);
    last->v = job->v;
    last->dq = b->dq;
    last->dk = b->dk;
    last->dv = b->dv;
    last->dbeta = b->dbeta;
    last->dg = b->dg;
    last->states = memory + l.states;
    last->values = memory + l.values;
    last->dstates = memory + l.dstates;
    last->partial = job->gate_inside ? (float *)(memory + l.partial) : NULL;
}

carry_status run(carry_ctx *ctx, const carry_delta_chunk_back *b, encoder encode, int units, int ordinal,
                 cudaStream_t stream) {
    const carry_delta_chunk_job *job = &b->job;
    layout l = layout_of(job, units);
    char *memory = (char *)job->workspace;
    scan_launch both = {};
    scan_args &a = both.first, &back = both.second;
    gradient_args last = {};
    CARRY_TRY(make_map(ctx, encode, &a.q, "q", &job->q, job, job->heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &a.k, "k", &job->k, job, job->heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &a.v, "v", &job->v, job, job->value_heads, 1, ordinal));
    CARRY_TRY(make_map(ctx, encode, &last.grad_o, "do", &b->grad_o, job, job->value_heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &last.grad_q, "dq", &b->dq, job, job->heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &last.grad_k, "dk", &b->dk, job, job->heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &last.grad_v, "dv", &b->dv, job, job->value_heads, 2, ordinal));
    last.in = prepare_args_of(job, &a.q, &a.k);
    CARRY_TRY(launch_prepare(ctx, job, last.in, ordinal, stream));
    a.s = shape_of(job);
    a.tiles = memory;
    a.state_transposed = job->state_transposed;
    a.initial_state = job->initial_state;
    a.states = memory + l.states;
    a.values = memory + l.values;
    a.pairs = (float *)(memory + l.pairs);
    back = a;
    CARRY_TRY(make_map(ctx, encode, &back.v, "do", &b->grad_o, job, job->value_heads, 1, ordinal));
    CARRY_TRY(make_map(ctx, encode, &back.o, "dv", &b->dv, job, job->value_heads, 1, ordinal));
    back.out = b->dv;
    back.initial_state = b->dfinal_state;
    back.final_state = b->dinitial_state;
    back.states = memory + l.dstates;
    CARRY_TRY((run_scan<KEEP, BACK>(ctx, job, both, segments_of(job, units, true), units, ordinal, stream)));
    set_gradients(&last, b, l);
    return launch_gradients(ctx, b, last, units, ordinal, stream);
}

} // namespace

extern "C" size_t carry_delta_chunk_back_bytes(const carry_delta_chunk_job *job, int units) {
    carry_delta_chunk_job part = round_of(*job, rounds_of(job, units), 0);
    return layout_of(&part, units).bytes;
}

extern "C" carry_status carry_delta_chunk_backward(carry_ctx *ctx, const carry_delta_chunk_back *b, int ordinal,
                                                   void *on) {
    int units = 0;
    encoder encode = NULL;
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    CARRY_TRY(check(ctx, b, ordinal));
    CARRY_TRY(find_encoder(ctx, &encode, ordinal));
    int rounds = rounds_of(&b->job, units);
    for (int round = 0; round < rounds; round++) {
        carry_delta_chunk_back part = round_of(*b, rounds, round);
        CARRY_TRY(run(ctx, &part, encode, units, ordinal, (cudaStream_t)on));
    }
    return CARRY_OK;
}
