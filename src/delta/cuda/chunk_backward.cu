/* Backward: prepare again, the states that enter every chunk, the states' gradients from the last chunk to the first,
   then the gradients of every chunk on its own. Nothing is kept from forward. */
#include "delta/cuda/chunk_gradient_parts.cuh"
#include "delta/cuda/chunk_host.cuh"

using namespace delta_chunk;

namespace {

struct layout {
    size_t states, values, dstates, y, partial, pairs, bytes;
};

layout layout_of(const carry_delta_chunk_job *job, int units) {
    size_t tiles = (size_t)(slots_of(job) * job->value_heads);
    layout l;
    l.states = tiles * CHUNK_BYTES;
    l.values = l.states + tiles * STATE_BYTES;
    l.dstates = l.values + tiles * TILE;
    l.y = l.dstates + tiles * STATE_BYTES;
    l.partial = l.y + tiles * TILE;
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

} // namespace

extern "C" size_t carry_delta_chunk_back_bytes(const carry_delta_chunk_job *job, int units) {
    return layout_of(job, units).bytes;
}

extern "C" carry_status carry_delta_chunk_backward(carry_ctx *ctx, const carry_delta_chunk_back *b, int ordinal,
                                                   void *on) {
    const carry_delta_chunk_job *job = &b->job;
    cudaStream_t stream = (cudaStream_t)on;
    int units = 0;
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal), "it cannot be asked");
    layout l = layout_of(job, units);
    char *memory = (char *)job->workspace;
    encoder encode = NULL;
    scan_launch both = {};
    scan_args &a = both.first, &back = both.second;
    gradient_args last = {};
    CARRY_TRY(check(ctx, b, ordinal));
    CARRY_TRY(find_encoder(ctx, &encode, ordinal));
    CARRY_TRY(make_map(ctx, encode, &a.q, "q", &job->q, job, job->heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &a.k, "k", &job->k, job, job->heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &a.v, "v", &job->v, job, job->value_heads, 1, ordinal));
    CARRY_TRY(make_map(ctx, encode, &last.grad_o, "do", &b->grad_o, job, job->value_heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &last.grad_q, "dq", &b->dq, job, job->heads, 2, ordinal));
    CARRY_TRY(make_map(ctx, encode, &last.grad_k, "dk", &b->dk, job, job->heads, 2, ordinal));
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
    back.initial_state = b->dfinal_state;
    back.final_state = b->dinitial_state;
    back.states = memory + l.dstates;
    back.values = memory + l.y;
    CARRY_TRY((run_scan<KEEP, BACK>(ctx, job, both, segments_of(job, units, true), units, ordinal, stream)));
    last.items = (int)(slots_of(job) * job->heads);
    last.v = job->v;
    last.dq = b->dq;
    last.dk = b->dk;
    last.dv = b->dv;
    last.dbeta = b->dbeta;
    last.dg = b->dg;
    last.states = memory + l.states;
    last.values = memory + l.values;
    last.dstates = memory + l.dstates;
    last.y = memory + l.y;
    last.partial = job->gate_inside ? (float *)(memory + l.partial) : NULL;
    return launch_gradients(ctx, b, last, units, ordinal, stream);
}
