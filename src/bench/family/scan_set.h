/* Sets of inputs and outputs of a scan problem, on the CPU or on a GPU.

   Inputs are experiment 044's: decays uniform in [0.8, 1], b = 0.1 normal. Dense transitions are uniform in
   +-0.78/sqrt(n), whose spectral norm comes to about 0.9. `deep`, for diagonal problems, draws decays from e^-40 to 1,
   about an eighth of which are exactly zero. */
#ifndef CARRY_LAB_SCAN_SET_H
#define CARRY_LAB_SCAN_SET_H

#include "carry/scan.h"

typedef struct carry_scan_set {
    carry_tensor A, b, h, h0;
    carry_tensor g, dA, dh0; /* backward only; db is written to h */
} carry_scan_set;

/* Makes a set on the CPU. carry_scan_set_free frees the tensors, also after a failure here. */
carry_status carry_scan_set_new(carry_ctx *ctx, carry_scan_set *set, const carry_scan_problem *problem, bool deep,
                                uint64_t seed);
/* Makes the same set on a device. */
carry_status carry_scan_set_upload(carry_ctx *ctx, carry_scan_set *to, carry_scan_set *from, int device);
/* Sets the outputs to NaN, in `host` and in `set`, which may be the same. */
carry_status carry_scan_set_poison(carry_ctx *ctx, carry_scan_set *set, carry_scan_set *host);
/* Copies the outputs back to the CPU. */
carry_status carry_scan_set_download(carry_ctx *ctx, carry_scan_set *host, carry_scan_set *set);
void carry_scan_set_free(carry_ctx *ctx, carry_scan_set *set);

#endif
