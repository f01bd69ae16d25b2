/* Tensor-core instructions since Ampere: loads of operands from shared memory, and a product of bf16. */
#ifndef CARRY_ATTENTION_TENSOR_CORES_CUH
#define CARRY_ATTENTION_TENSOR_CORES_CUH

#include <stdint.h>

template <bool TRANSPOSED> static __device__ __forceinline__ void load_matrices(uint32_t (&b)[4], uint32_t from) {
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(from));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(from));
    }
}

/* d[16, 8] += a[16, 16] b[16, 8] */
static __device__ __forceinline__ void multiply(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
