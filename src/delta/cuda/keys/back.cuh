/* The backward pass of "keys64" (keys.cuh), chunks of 64 tokens. Of a chunk, rows being tokens, S the state that enters
   and S' the one that leaves; kf = k e^G, qf = scale q e^G, kl = k e^(G[C]-G), end = e^(G[C]); A, P of keys.cuh:

       rest = v - kf S - A x;   x = beta rest;   o = qf S + P x;   S' = end S + kl^T x

   and in reverse, from do and dS':

       dx = P^T do + kl dS';   y = dx - A^T dv;   dv = beta y;   dbeta = y.rest
       dS = end dS' + qf^T do - kf^T dv
       dqf = do S^T;   dkf = -dv S^T;   dkl = x dS'^T;   dP = do x^T (j <= i);   dA = -dv x^T (j < i)
       dq[i] = scale (e^G[i] dqf[i] + sum_{j<=i} dP[i,j] e^(G[i]-G[j]) k[j])
       dk[i] = e^G[i] dkf[i] + sum_{j<i} dA[i,j] e^(G[i]-G[j]) k[j]                                  (as the later one)
             + e^(G[C]-G[i]) dkl[i] + sum_{m>=i} e^(G[m]-G[i]) (scale dP[m,i] q[m] + dA[m,i] k[m])  (as the earlier one)
       dG[i] = q[i] dq[i] + k[i] (dk[i] as the later one - as the earlier), by channel, without dkl and pairs of i = m
       dg[t] = sum_{i>=t} dG[i] + sum_{i<t} k[i] e^(G[C]-G[i]) dkl[i] + end sum_v S dS'

   Kernels: prepare makes pages; walk the states that enter, unless forward kept them; back_walk dS' and y; values x, dv
   and dbeta; gradients the rest. Only the walks go from chunk to chunk; they cut V into blocks of 64 columns.

   No power of two is of a positive number. As in keys.cuh, e^(G[i]-G[j]) is e^(G[i]-G0) e^(G0-G[j]) with G0 the start
   of i's block of 16 tokens, or one power a pair and channel inside a block. In dG a pair comes twice, with both signs,
   from products of the same rounded operands: pairs on one side of a gate cancel in f32. */
#ifndef CARRY_DELTA_KEYS_BACK_CUH
#define CARRY_DELTA_KEYS_BACK_CUH

#include "delta/cuda/keys/keys.cuh"

namespace DELTA_KEYS {

constexpr int LV = COLUMNS + 8;

/* The numbers of a left operand, as a result has them. */
__device__ __forceinline__ float number_in(const unsigned (&a)[4], int h, int x) {
    const unsigned two = a[2 * h + x / 2];
    return x % 2 == 0 ? low_of(two) : high_of(two);
}

} // namespace DELTA_KEYS

#endif
