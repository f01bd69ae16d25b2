/* Diagonal transitions, step after step: one thread carries its channels through all of time and keeps the loads of the
   next steps in flight while it works on these. Every byte moves once, so with enough channels to fill the GPU nothing is
   faster. */
#include "scan/diagonal.cuh"

namespace {

constexpr int THREADS = 128;

template <int V, typename TB, typename TH, int AHEAD>
__global__ void __launch_bounds__(THREADS) walk(const carry_diagonal d) {
    int channel = (int)(blockIdx.x * THREADS + threadIdx.x) * V;
    int item = (int)blockIdx.y;
    if (channel >= d.channels) {
        return;
    }
    int row = channel / d.width;
    int64_t a_at = item * d.A.item + row;
    int64_t b_at = item * d.b.item + channel;
    int64_t h_at = item * d.h.item + channel;
    float state[V];
    carry_initial<V>(state, d, item, channel);
    carry_channels<V, TB, TH> b[2][AHEAD];
    carry_bits a[2][AHEAD];
    int64_t blocks = d.steps / AHEAD;
    auto fetch = [&](int slot) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            a[slot][i].load(d.A, a_at);
            b[slot][i].load(d.b, b_at);
            a_at += d.A.step;
            b_at += d.b.step;
        }
    };
    auto advance = [&](int slot) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float added[V];
            float decay = a[slot][i].value(d.A.type);
            b[slot][i].expand(added, d.b);
#pragma unroll
            for (int v = 0; v < V; v++) {
                state[v] = fmaf(decay, state[v], added[v]);
            }
            carry_channels<V, TB, TH>::store(d.h, h_at, state);
            h_at += d.h.step;
        }
    };
    if (blocks > 0) {
        fetch(0);
    }
    int64_t block = 0;
    for (; block + 2 <= blocks; block += 2) { /* two at a time, so that the slots are known when this is compiled */
        fetch(1);
        advance(0);
        if (block + 2 < blocks) {
            fetch(0);
        }
        advance(1);
    }
    if (block < blocks) {
        advance(0);
    }
    for (int64_t t = blocks * AHEAD; t < d.steps; t++) {
        float decay = carry_load_any(d.A.data, d.A.type, a_at);
        float added[V];
        b[0][0].load(d.b, b_at);
        b[0][0].expand(added, d.b);
        a_at += d.A.step;
        b_at += d.b.step;
#pragma unroll
        for (int v = 0; v < V; v++) {
            state[v] = fmaf(decay, state[v], added[v]);
        }
        carry_channels<V, TB, TH>::store(d.h, h_at, state);
        h_at += d.h.step;
    }
}

} // namespace

cudaError_t carry_diagonal_sequential(const carry_diagonal &d, bool wide, cudaStream_t stream) {
#define LAUNCH(V, TB, TH)                                                                                              \
    do {                                                                                                               \
        dim3 grid((unsigned)((d.channels / V + THREADS - 1) / THREADS), (unsigned)d.items);                            \
        walk<V, TB, TH, 8><<<grid, THREADS, 0, stream>>>(d);                                           \
    } while (0)
    CARRY_DIAGONAL_TYPES(d, wide, 8, LAUNCH);
#undef LAUNCH
    return cudaGetLastError();
}
