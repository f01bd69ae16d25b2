/* The backward pass of "keys64" (keys.cuh), chunks of 64 tokens. For one chunk, with tokens as rows, S is the state
   that enters and S' the state that leaves. With kf = k e^G, qf = scale q e^G, kl = k e^(G[C]-G), end = e^(G[C]),
   and A and P as in keys.cuh, the forward pass is

       rest = v - kf S - A x;   x = beta rest;   o = qf S + P x;   S' = end S + kl^T x

   and the backward pass, from do and dS', is

       dx = P^T do + kl dS';   y = dx - A^T dv;   dv = beta y;   dbeta = y.rest
       dS = end dS' + qf^T do - kf^T dv
       dqf = do S^T;   dkf = -dv S^T;   dkl = x dS'^T;   dP = do x^T (j <= i);   dA = -dv x^T (j < i)
       dq[i] = scale (e^G[i] dqf[i] + sum_{j<=i} dP[i,j] e^(G[i]-G[j]) k[j])
       dk[i] = e^G[i] dkf[i] + sum_{j<i} dA[i,j] e^(G[i]-G[j]) k[j]                                  (as the later one)
             + e^(G[C]-G[i]) dkl[i] + sum_{m>=i} e^(G[m]-G[i]) (scale dP[m,i] q[m] + dA[m,i] k[m])  (as the earlier one)
       dG[i] = q[i] dq[i] + k[i] (dk[i] as the later one - as the earlier), by channel, without terms of dkl and i = m
       dg[t] = sum_{i>=t} dG[i] + sum_{i<t} k[i] e^(G[C]-G[i]) dkl[i] + end sum_v S dS'

   The kernels: prepare computes pages, walk the states that enter (unless the forward pass kept them), back_walk dS'
   and y, values x, dv and dbeta, and gradients the rest. Only the walks go from chunk to chunk; their blocks have 64
   columns of V each.

   The exponents of all powers are at most 0. As in keys.cuh, e^(G[i]-G[j]) is e^(G[i]-G0) e^(G0-G[j]), where G0 is G
   at the start of i's block of 16 tokens. Inside a block it is one power for each pair and channel. Each pair occurs
   twice in dG, with opposite signs, from products of the same rounded operands. So pairs on one side of a gate
   cancel in f32. */
#ifndef CARRY_DELTA_KEYS_BACK_CUH
#define CARRY_DELTA_KEYS_BACK_CUH

#include "delta/cuda/keys/keys.cuh"

namespace DELTA_KEYS {

constexpr int LV = COLUMNS + 8;

/* Element x of half h of a left operand, indexed as in a result. */
__device__ __forceinline__ float number_in(const unsigned (&a)[4], int h, int x) {
    const unsigned two = a[2 * h + x / 2];
    return x % 2 == 0 ? low_of(two) : high_of(two);
}

} // namespace DELTA_KEYS

#endif
